"""The command line: options to requests, errors to exit codes; opens the doors, picks the view.

Modules import only typer at the top: ``sparkserve --help`` pays for nothing else.
"""
