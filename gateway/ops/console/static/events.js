// Server-Sent Events from bytes: lines end in CR, LF or CRLF, an event at an empty line; half an event is none.

export class EventParser {
  #decoder = new TextDecoder()
  #text = ""
  #name = ""
  #data = []

  /** The events that are complete with this chunk: `[{name, data}]`. */
  push(chunk) {
    this.#text += this.#decoder.decode(chunk, { stream: true })
    const events = []
    for (;;) {
      const end = this.#text.search(/[\r\n]/)
      // A CR at the very end may be the first half of a CRLF.
      if (end < 0 || (this.#text[end] === "\r" && end === this.#text.length - 1)) return events
      const line = this.#text.slice(0, end)
      this.#text = this.#text.slice(end + (this.#text.startsWith("\r\n", end) ? 2 : 1))
      const event = this.#take(line)
      if (event) events.push(event)
    }
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
