// Following a stream as its clients do: catch up, then live by SSE or long-poll, and on from the last offset after
// every end of a connection.  What came is handed on only when the offset behind it is known, so nothing comes twice.

import { EventParser } from "./events.js"

const FIRST_PAUSE_MS = 250
const LONGEST_PAUSE_MS = 8000
const SHORT_LIFE_MS = 1000

/** The stream's own answer that ends the reading: it is not there, or may not be read. */
export class Ended extends Error {}

const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms)
    signal.addEventListener("abort", () => {
      clearTimeout(timer)
      reject(signal.reason)
    })
  })

const media = (type) => (type ?? "").split(";")[0].trim().toLowerCase()

/** The messages of a body: JSON's are the elements of its array, text and bytes are one each. */
export function messages(kind, body) {
  if (kind === "json") return JSON.parse(typeof body === "string" ? body : new TextDecoder().decode(body))
  if (kind === "text") return [typeof body === "string" ? body : new TextDecoder().decode(body)].filter((text) => text)
  return [body].filter((bytes) => bytes.length)
}

export const kindOf = (type) =>
  media(type) === "application/json" ? "json" : media(type).startsWith("text/") ? "text" : "bytes"

const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/[\r\n]/g, "")), (char) => char.charCodeAt(0))

/**
 * Follow `target` from `from` (an offset, "-1" or "now") until it is closed or the signal says so.
 *
 * `read(target, signal)` gives a response; `on.state(word)`, `on.type(type)` and `on.batch({messages, kind, offset,
 * upToDate, closed})` hear of what happens.  Throws Ended with what the stream answered.
 */
export async function follow({ read, target, from, live, on, signal }) {
  const place = { offset: from, cursor: null, kind: null, upToDate: false, closed: false }
  let failures = 0
  while (!place.closed) {
    const began = performance.now()
    const cameFrom = place.offset
    let failed = false
    try {
      if (place.kind === null || !place.upToDate) await catchUp(read, target, place, on, signal)
      else if (live === "sse") await bySse(read, target, place, on, signal)
      else await byLongPoll(read, target, place, on, signal)
    } catch (error) {
      if (error instanceof Ended || signal.aborted) throw error
      failed = true
      on.state("reconnecting", error.message)
    }
    const isShort = live === "sse" && place.upToDate && performance.now() - began < SHORT_LIFE_MS
    failures = place.offset !== cameFrom || !(failed || isShort) ? 0 : failures + 1
    if (failures) await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures) * (0.5 + Math.random() / 2), signal)
  }
  on.state("closed")
}

const asked = (target, values) => {
  const parts = Object.entries(values).filter(([, value]) => value !== null)
  const query = parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")
  return `${target}${target.includes("?") ? "&" : "?"}${query}`
}

async function refuse(reply) {
  const text = (await reply.text()).trim().slice(0, 200)
  if (reply.status >= 500 || reply.status === 429) throw new Error(`${reply.status} ${text}`)
  throw new Ended(`${reply.status} ${text}`)
}

function arrived(reply, body, place, on) {
  place.offset = reply.headers.get("stream-next-offset") ?? place.offset
  place.cursor = reply.headers.get("stream-cursor") ?? place.cursor
  place.closed = reply.headers.get("stream-closed") === "true"
  place.upToDate = place.closed || reply.status === 204 || reply.headers.get("stream-up-to-date") === "true"
  on.batch({
    messages: reply.status === 204 ? [] : messages(place.kind, body),
    kind: place.kind,
    offset: place.offset,
    upToDate: place.upToDate,
    closed: place.closed,
  })
}

async function catchUp(read, target, place, on, signal) {
  on.state("catching up")
  const reply = await read(asked(target, { offset: place.offset }), signal)
  if (reply.status !== 200) await refuse(reply)
  const type = reply.headers.get("relayed-content-type")
  place.kind = kindOf(type)
  on.type(type)
  arrived(reply, new Uint8Array(await reply.arrayBuffer()), place, on)
}

async function byLongPoll(read, target, place, on, signal) {
  on.state("live by long-poll")
  const reply = await read(asked(target, { cursor: place.cursor, live: "long-poll", offset: place.offset }), signal)
  if (reply.status !== 200 && reply.status !== 204) await refuse(reply)
  arrived(reply, new Uint8Array(await reply.arrayBuffer()), place, on)
}

async function bySse(read, target, place, on, signal) {
  const reply = await read(asked(target, { cursor: place.cursor, live: "sse", offset: place.offset }), signal)
  if (reply.status !== 200) await refuse(reply)
  on.state("live by SSE")
  const isBase64 = reply.headers.get("stream-sse-data-encoding") === "base64"
  const parser = new EventParser()
  const reader = reply.body.getReader()
  let waiting = []
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    for (const event of parser.push(value)) {
      if (event.name === "data") waiting.push(isBase64 ? fromBase64(event.data) : event.data)
      if (event.name !== "control") continue
      const control = JSON.parse(event.data)
      place.offset = control.streamNextOffset
      place.cursor = control.streamCursor ?? place.cursor
      place.closed = control.streamClosed === true
      on.batch({
        messages: waiting.flatMap((body) => messages(place.kind, body)),
        kind: place.kind,
        offset: place.offset,
        upToDate: place.closed || control.upToDate === true,
        closed: place.closed,
      })
      waiting = []
      if (place.closed) return
    }
  }
}
