// Follows a stream as its clients do: catches up, then reads live by SSE or long-poll, and resumes from the last offset
// after a connection ends.  Messages are delivered only when the offset after them is known, so none is delivered twice.
//
// A server that answers at once without data never causes a tight loop: an answer without an offset ends the reading,
// an unchanged offset is the tail, and after each short round without data comes a pause, which doubles.

import { EventParser } from "./events.js"

const FIRST_PAUSE_MS = 250
const LONGEST_PAUSE_MS = 8000
const SHORT_LIFE_MS = 1000

/** A printable token of 256 characters at most, without the characters that the protocol forbids (section 6). */
const OFFSET = /^(?![^]*[,&=?/])[!-~]{1,256}$/

/** The answer that ends the reading: the stream does not exist, may not be read, or is not a stream. */
export class Ended extends Error {}

const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms)
    const left = () => (clearTimeout(timer), reject(signal.reason))
    if (signal.aborted) left()
    else signal.addEventListener("abort", left, { once: true })
  })

export const media = (type) => (type ?? "").split(";")[0].trim().toLowerCase()

/** The messages of a body: the elements of a JSON array; a text or binary body is one message. */
export function messages(kind, body) {
  if (kind === "json") return [JSON.parse(typeof body === "string" ? body : new TextDecoder().decode(body))].flat()
  if (kind === "text") return [typeof body === "string" ? body : new TextDecoder().decode(body)].filter((text) => text)
  return [body].filter((bytes) => bytes.length)
}

export const kindOf = (type) =>
  media(type) === "application/json" ? "json" : media(type).startsWith("text/") ? "text" : "bytes"

const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/[\r\n]/g, "")), (char) => char.charCodeAt(0))

/**
 * Follow `target` from `from` (an offset, "-1" or "now") until it is closed or `signal` aborts.
 *
 * `read(target, signal)` resolves to a response; `on.state(word)`, `on.type(type)` and `on.batch({messages, kind, offset,
 * upToDate, closed})` are the callbacks.  Throws Ended with the answer that ended the reading.
 */
export async function follow({ read, target, from, live, on, signal }) {
  const place = { offset: from, cursor: null, kind: null, upToDate: false, closed: false, came: 0 }
  const round = (isLive) => {
    if (!isLive) return catchUp(read, target, place, on, signal)
    return live === "sse" ? bySse(read, target, place, on, signal) : byLongPoll(read, target, place, on, signal)
  }
  await repeat(round, place, on, signal)
}

/** Repeat `round(isLive)` until `place.closed`; a failure, and a short round without data, is followed by a pause. */
export async function repeat(round, place, on, signal) {
  let failures = 0
  while (!place.closed) {
    const began = performance.now()
    const isLive = place.kind !== null && place.upToDate
    place.came = 0
    let failed = false
    try {
      await round(isLive)
    } catch (error) {
      if (error instanceof Ended || signal.aborted) throw error
      failed = true
      on.state("reconnecting", error.message)
    }
    // The switch from catching up to live is the only round without data that needs no pause.
    const isIdle = !(place.came || place.closed) && (isLive || !place.upToDate) && performance.now() - began < SHORT_LIFE_MS
    failures = !place.came && (failed || isIdle) ? failures + 1 : 0
    if (failures) await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures) * (0.5 + Math.random() / 2), signal)
  }
  on.state("closed")
}

const asked = (target, values) => {
  const parts = Object.entries(values).filter(([, value]) => value !== null)
  const query = parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")
  return `${target}${target.includes("?") ? "&" : "?"}${query}`
}

export async function refuse(reply) {
  const text = (await reply.text()).trim().slice(0, 200)
  if (reply.status >= 500 || reply.status === 429) throw new Error(`${reply.status} ${text}`)
  throw new Ended(`${reply.status} ${text}`)
}

const rank = (offset) => (offset === "-1" ? "" : offset)

/** The offset at which an answer ends; an answer without one is not a stream's, and its body is not read. */
async function endOf(reply) {
  const offset = reply.headers.get("stream-next-offset") ?? ""
  if (OFFSET.test(offset)) return offset
  await reply.body?.cancel()
  throw new Ended("not a stream: no Stream-Next-Offset in the answer")
}

/** Advance the position.  Only this function does, and never backwards. */
function advance(place, offset) {
  if (place.offset !== "now" && rank(offset) < rank(place.offset)) throw new Ended(`its tail lies before ${place.offset}: it was made anew`)
  const moved = offset !== place.offset
  place.offset = offset
  return moved
}

function arrived(reply, offset, body, place, on) {
  const came = reply.status === 204 ? [] : messages(place.kind, body)
  const moved = advance(place, offset)
  place.cursor = reply.headers.get("stream-cursor") ?? place.cursor
  place.closed = reply.headers.get("stream-closed") === "true"
  // Without new data or an up-to-date claim the same request would repeat at once; a live request waits instead.
  place.upToDate = place.closed || !moved || reply.status === 204 || reply.headers.get("stream-up-to-date") === "true"
  if (moved) place.came += came.length
  on.batch({
    messages: moved ? came : [],
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
  const offset = await endOf(reply)
  const type = reply.headers.get("relayed-content-type")
  place.kind = kindOf(type)
  on.type(type)
  arrived(reply, offset, new Uint8Array(await reply.arrayBuffer()), place, on)
}

async function byLongPoll(read, target, place, on, signal) {
  on.state("live by long-poll")
  const reply = await read(asked(target, { cursor: place.cursor, live: "long-poll", offset: place.offset }), signal)
  if (reply.status !== 200 && reply.status !== 204) await refuse(reply)
  const offset = await endOf(reply)
  arrived(reply, offset, new Uint8Array(await reply.arrayBuffer()), place, on)
}

async function bySse(read, target, place, on, signal) {
  const reply = await read(asked(target, { cursor: place.cursor, live: "sse", offset: place.offset }), signal)
  if (reply.status !== 200) await refuse(reply)
  if (media(reply.headers.get("relayed-content-type")) !== "text/event-stream") {
    await reply.body?.cancel()
    throw new Ended("asked for SSE and got something else; try long-poll")
  }
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
      if (!OFFSET.test(control.streamNextOffset ?? "")) throw new Ended("not a stream: a control event without an offset")
      const came = waiting.flatMap((body) => messages(place.kind, body))
      const moved = advance(place, control.streamNextOffset)
      if (moved) place.came += came.length
      place.cursor = control.streamCursor ?? place.cursor
      place.closed = control.streamClosed === true
      on.batch({
        messages: moved ? came : [],
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
