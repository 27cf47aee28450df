"""One reload at all workers, whose outcome is one line."""

from __future__ import annotations

from collections.abc import Iterable


class ReloadRound:
    """The workers that have been told to read the configuration again, and what they have said."""

    def __init__(self, slots: Iterable[int]) -> None:
        self._outcomes: dict[int, str | None] = dict.fromkeys(slots)
        """The outcome at each slot that takes part; None if it is still to come."""

    def __repr__(self) -> str:
        return f"<ReloadRound {self._outcomes}>"

    def __contains__(self, slot: int) -> bool:
        return slot in self._outcomes

    def hears(self, slot: int, outcome: str) -> None:
        """Note the outcome at a slot."""
        if slot in self._outcomes:
            self._outcomes[slot] = outcome

    def loses(self, slot: int) -> None:
        """Note that a slot's worker has ended.  The next one begins with the configuration of the others."""
        self._outcomes.pop(slot, None)

    @property
    def outcome(self) -> str | None:
        """The outcome in one line; None if it is still to come."""
        if None in self._outcomes.values():
            return None
        texts = set(self._outcomes.values())
        if len(texts) > 1:
            return "; ".join(f"worker {slot}: {text}" for slot, text in sorted(self._outcomes.items()))
        return texts.pop() if texts else "not reloaded: all workers ended meanwhile"
