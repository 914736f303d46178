"""The migrations of the feedback database, run by `FeedbackStore`."""
