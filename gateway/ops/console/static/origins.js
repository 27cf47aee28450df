// The state of the origins in words: /api/origins on one line.  `gateway/commands/origins.py` has the same words.

/** `answering`; `not_asked`: breaker closed, never heard from; `unreachable`: breaker not closed, or origin ejected. */
export function health(origin) {
  if (origin.state !== "closed" || origin.is_ejected) return "unreachable"
  return origin.last_heard_s === null ? "not_asked" : "answering"
}

/** The worst health of all origins. */
export function worst(origins) {
  const found = origins.map(health)
  return ["unreachable", "not_asked"].find((one) => found.includes(one)) ?? "answering"
}

/** `answers`, or the trouble with one origin and the time of the next try. */
export function state(origin) {
  const found = health(origin)
  if (found === "answering") return "answers"
  if (found === "not_asked") return "not asked yet"
  const word = origin.state === "closed" ? "ejected" : "unreachable"
  return `${word}: ${origin.reason || "it does not answer"}${nextTry(origin)}`
}

function nextTry({ state, retry_in_s }) {
  if (state === "half_open") return ", being tried"
  return retry_in_s === null ? "" : `, next try in ${retry_in_s.toFixed(1)} s`
}

/** One origin: its state.  Several: how many answer, and the state of the first that does not. */
export function words(origins) {
  if (!origins.length) return "no origin"
  if (origins.length === 1) return `origin ${state(origins[0])}`
  const found = origins.map(health)
  const count = (wanted) => found.filter((one) => one === wanted).length
  const unasked = count("not_asked") ? `, ${count("not_asked")} not asked yet` : ""
  const first = origins[found.indexOf("unreachable")]
  return `${count("answering")} of ${origins.length} origins answer${unasked}${first ? `; ${first.origin} ${state(first)}` : ""}`
}
