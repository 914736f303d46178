"""Watches the service from its recorded feedback: drift, alarms, and estimates for a model that was not served."""
