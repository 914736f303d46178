"""The one exception for mistakes that the user can mend."""


class InputError(Exception):
    """Bad parameters, data or environment; the message names the field, its value and the remedy.

    The command line prints the message alone (no traceback) and exits with status 2.
    """
