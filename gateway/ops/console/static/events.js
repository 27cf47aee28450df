// Parses Server-Sent Events from bytes.  CR, LF or CRLF ends a line, an empty line ends an event; a partial one is dropped.

const LINE_END = /\r\n?|\n/g

export class EventParser {
  #decoder = new TextDecoder()
  /** The chunks of an unfinished line, joined once at its end, so that a long line is scanned once. */
  #parts = []
  #isAfterCr = false
  #name = ""
  #data = []

  /** The events that this chunk completes: `[{name, data}]`. */
  push(chunk) {
    let text = this.#decoder.decode(chunk, { stream: true })
    if (!text) return []
    // A CR at the end of the previous chunk ended its line already; a LF that follows belongs to it.
    if (this.#isAfterCr && text.startsWith("\n")) text = text.slice(1)
    const events = []
    let from = 0
    for (const { 0: end, index } of text.matchAll(LINE_END)) {
      this.#parts.push(text.slice(from, index))
      from = index + end.length
      const event = this.#take(this.#parts.join(""))
      this.#parts = []
      if (event) events.push(event)
    }
    if (from < text.length) this.#parts.push(text.slice(from))
    this.#isAfterCr = text.endsWith("\r")
    return events
  }

  #take(line) {
    if (line === "") {
      const event = this.#data.length ? { name: this.#name || "message", data: this.#data.join("\n") } : null
      this.#name = ""
      this.#data = []
      return event
    }
    const colon = line.indexOf(":")
    const [name, rest] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1)]
    const value = rest.startsWith(" ") ? rest.slice(1) : rest
    if (name === "event") this.#name = value
    else if (name === "data") this.#data.push(value)
    return null
  }
}
