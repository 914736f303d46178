"""A session of `convrec chat`."""

import re
from collections.abc import Sequence
from typing import Any

from convrec.project.errors import InputError
from convrec.service.recommender import Recommendation, Recommender

_HELP = """Say what {items} you would like; each line is your next turn.
/more  further items    /deny TITLE  never this    /n N  items of a list    /reset  start again    /quit"""

_ANSWER = re.compile(r"(?:(?P<yes>y|yes|yeah|yep|right|exactly)|n|no|nope)\W*", re.IGNORECASE)  # to a question


class Session:
    """A conversation with a recommender; denied titles stay denied until it is reset."""

    def __init__(self, recommender: Recommender, n: int, deny: Sequence[str] = (), allow: Sequence[str] | None = None):
        """Raise `InputError` for a title that is not in the catalog."""
        for name, titles in (("--deny", deny), ("--allow", allow or ())):
            recommender.translator.resolve(name, titles)
        self._recommender, self._n, self._allow = recommender, n, allow
        self._always_denied = list(deny)
        self._messages: list[dict[str, Any]] = []
        self._denied: list[str] = []
        self._shown: list[Recommendation] = []  # since the last turn
        self._last: list[str] = []  # the last list
        self._asked: list[str] = []  # the wishes that the last answer asks about
        self._choices: dict[str, bool] = {}  # what was answered; a later turn that states the wish ends it
        self.is_over = False
        self.help = _HELP.format(items=recommender.noun)

    def answer(self, entry: str) -> str:
        """Return the answer to a line: a list, a notice, or an error message."""
        command, _, argument = entry.strip().partition(" ")
        if not command:
            return self.help
        try:
            if not command.startswith("/"):
                return self._say(entry.strip())
            return self._command(command, argument.strip())
        except InputError as error:
            return str(error)

    def _command(self, command: str, argument: str) -> str:
        if command == "/quit":
            self.is_over = True
            return "bye"
        if command == "/reset":
            self._messages, self._denied, self._shown, self._asked, self._choices = [], [], [], [], {}
            return "a new conversation"
        if command == "/n":
            if not re.fullmatch("[1-9][0-9]{0,8}", argument):
                raise InputError(f"/n {argument:.40}: give a number of items, from 1")
            self._n = int(argument)
        elif command == "/deny":
            self._recommender.translator.resolve("/deny", [argument])
            self._denied.append(argument)
        elif command == "/more":
            return self._show(more=True)
        else:
            return f"{command} is not a command\n{self.help}"
        return self._show() if self._messages else "noted"

    def _say(self, words: str) -> str:
        if self._asked and (answer := _ANSWER.fullmatch(words)):
            self._choices |= dict.fromkeys(self._asked, bool(answer["yes"]))
            return self._show()
        before = self._messages, self._choices
        # What it says is without titles, which the next list would leave out.
        answered = {"role": "assistant", "content": f"Here are some {self._recommender.noun}.", "items": self._last}
        own = {"role": "user", "content": words}
        self._messages = [*self._messages, answered, own] if self._messages else [own]
        self._choices = self._recommender.translator.wishes.still_chosen(self._choices, own)
        try:
            return self._show()
        except InputError:
            self._messages, self._choices = before
            raise

    def _show(self, more: bool = False) -> str:
        if not self._messages:
            raise InputError("the conversation is empty; say what you would like")
        shown = self._shown if more else []
        deny = [*self._always_denied, *self._denied, *map(str, shown)]
        (answer,) = self._recommender.recommend(
            [self._messages], self._n, deny, self._allow, or_fewer=True, reasons=True, wishes=self._choices
        )
        self._shown, self._last = [*shown, *answer], list(map(str, answer))
        self._asked = [wish.text for wish in answer.wishes if wish.state == "unsure"]
        return str(answer)
