"""Watches the service from its recorded feedback: drift, failures and alarms."""
