"""Simple models of the eviction policies: slow, with plain lists searched from end to end."""

from __future__ import annotations

from gateway.tape.eviction import Eviction


class LruModel:
    def __init__(self) -> None:
        self.keys: list[int] = []

    def admit(self, key: int) -> None:
        if key not in self.keys:
            self.keys.append(key)

    def touch(self, key: int) -> None:
        if key in self.keys:
            self.keys.remove(key)
            self.keys.append(key)

    def forget(self, key: int) -> None:
        if key in self.keys:
            self.keys.remove(key)

    def victim(self, spared: int) -> int | None:
        others = [key for key in self.keys if key != spared]
        if not others:
            return None
        self.keys.remove(others[0])
        return others[0]

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def __len__(self) -> int:
        return len(self.keys)


class SieveModel:
    """The paper's figure: keys oldest first, and the hand; past the newest key it restarts at the oldest."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.visited: set[int] = set()
        self.hand = 0

    def admit(self, key: int) -> None:
        if key not in self.keys:
            # A hand that has passed the newest key misses later ones: it stands before the oldest.
            self.hand %= max(1, len(self.keys))
            self.keys.append(key)

    def touch(self, key: int) -> None:
        if key in self.keys:
            self.visited.add(key)

    def forget(self, key: int) -> None:
        if key in self.keys:
            index = self.keys.index(key)
            self.keys.pop(index)
            self.visited.discard(key)
            self.hand -= index < self.hand

    def victim(self, spared: int) -> int | None:
        if set(self.keys) <= {spared}:
            return None
        while True:
            self.hand %= len(self.keys)
            key = self.keys[self.hand]
            if key == spared:
                self.hand += 1
            elif key in self.visited:
                self.visited.remove(key)
                self.hand += 1
            else:
                self.keys.pop(self.hand)
                return key

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def __len__(self) -> int:
        return len(self.keys)


class S3FifoModel:
    """The paper's algorithm 1 with lists for queues, and the share adapted to returning keys."""

    def __init__(self) -> None:
        self.small: list[int] = []
        self.main: list[int] = []
        self.touches: dict[int, int] = {}
        self.ghosts_small: list[int] = []
        self.ghosts_main: list[int] = []
        self.share = 0.1

    def admit(self, key: int) -> None:
        if key in self:
            return
        self.touches[key] = 0
        small, main = len(self.ghosts_small), len(self.ghosts_main)
        if key in self.ghosts_small:
            self.ghosts_small.remove(key)
            self.share = min(0.5, self.share + 0.01 * max(1.0, main / small))
            self.main.append(key)
        elif key in self.ghosts_main:
            self.ghosts_main.remove(key)
            self.share = max(0.05, self.share - 0.01 * max(1.0, small / main))
            self.main.append(key)
        else:
            self.small.append(key)

    def touch(self, key: int) -> None:
        if key in self:
            self.touches[key] = min(2, self.touches[key] + 1)

    def forget(self, key: int) -> None:
        for keys in (self.small, self.main, self.ghosts_small, self.ghosts_main):
            if key in keys:
                keys.remove(key)

    def victim(self, spared: int) -> int | None:
        if set(self.small + self.main) <= {spared}:
            return None
        while True:
            small_has_others, main_has_others = (set(keys) - {spared} for keys in (self.small, self.main))
            is_over = len(self.small) > self.share * len(self)
            if small_has_others and (is_over or not main_has_others):
                key = self.small.pop(0)
                if key == spared:
                    self.small.append(key)
                elif self.touches[key]:
                    self.touches[key] = 0
                    self.main.append(key)
                else:
                    return self.evicted(key, self.ghosts_small)
            else:
                key = self.main.pop(0)
                if key == spared:
                    self.main.append(key)
                elif self.touches[key]:
                    self.touches[key] -= 1
                    self.main.append(key)
                else:
                    return self.evicted(key, self.ghosts_main)

    def evicted(self, key: int, ghosts: list[int]) -> int:
        if key in ghosts:
            ghosts.remove(key)
        ghosts.append(key)
        del ghosts[: max(0, len(ghosts) - len(self) - 1)]
        return key

    def __contains__(self, key: object) -> bool:
        return key in self.small or key in self.main

    def __len__(self) -> int:
        return len(self.small) + len(self.main)


def model(policy: str) -> Eviction[int]:
    """The model of a policy."""
    match policy:
        case "lru":
            return LruModel()
        case "sieve":
            return SieveModel()
        case "s3-fifo":
            return S3FifoModel()
    raise KeyError(policy)
