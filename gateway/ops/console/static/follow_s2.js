// Follows an S2 stream as its SDKs do: from a sequence number, by SSE or by reads that wait at the tail.  After a broken
// connection it continues after the last record received.  Bodies are read in S2's raw format, in which bytes that are
// not UTF-8 become U+FFFD.

import { EventParser } from "./events.js"
import { Ended, media, refuse, repeat } from "./follow.js"

const WAIT_S = 30
const NUMBER = /^\d{1,20}$/

export const EVENTS = "text/event-stream"

/**
 * Follow the records of `stream` (its path) from `from` (a sequence number, "-1" or "now") until `signal` aborts.
 *
 * `read(target, accept, signal)` resolves to a response; `on` has the callbacks of `follow`.  Throws Ended with the answer
 * that ended the reading.
 */
export async function followS2({ read, stream, from, live, on, signal }) {
  const place = { at: null, kind: "records", upToDate: true, closed: false, came: 0 }
  const start = async () => {
    if (from !== "now" && from !== "-1" && !NUMBER.test(from)) throw new Ended(`not a sequence number: ${from}`)
    place.at = from === "now" ? await tail(read, stream, signal) : from === "-1" ? 0 : Number(from)
    on.type("")
    on.batch({ messages: [], kind: "text", offset: `${place.at}`, upToDate: true, closed: false })
  }
  const round = async () => {
    if (place.at === null) await start()
    await (live === "sse" ? bySse : byWaiting)(read, stream, place, on, signal)
  }
  await repeat(round, place, on, signal)
}

async function tail(read, stream, signal) {
  const reply = await read(`${stream}/records/tail`, "", signal)
  if (reply.status !== 200) await refuse(reply)
  return tailIn(await reply.json())
}

function tailIn(body) {
  const number = body?.tail?.seq_num
  if (!Number.isInteger(number)) throw new Ended("not an S2 stream: no tail in the answer")
  return number
}

async function byWaiting(read, stream, place, on, signal) {
  on.state("live by long-poll")
  const reply = await read(`${stream}/records?seq_num=${place.at}&wait=${WAIT_S}`, "", signal)
  if (reply.status === 416) compare(place, tailIn(await reply.json()))
  else if (reply.status !== 200) await refuse(reply)
  else arrived(await reply.json(), place, on)
}

async function bySse(read, stream, place, on, signal) {
  const reply = await read(`${stream}/records?seq_num=${place.at}`, EVENTS, signal)
  if (reply.status === 416) return compare(place, tailIn(await reply.json()))
  if (reply.status !== 200) await refuse(reply)
  if (media(reply.headers.get("relayed-content-type")) !== EVENTS) {
    await reply.body?.cancel()
    throw new Ended("asked for SSE and got something else; try long-poll")
  }
  on.state("live by SSE")
  const parser = new EventParser()
  const reader = reply.body.getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    for (const { name, data } of parser.push(value)) {
      if (data === "[DONE]") return
      const body = JSON.parse(data)
      if (name === "batch") arrived(body, place, on)
      else if (name === "ping" && body.tail) compare(place, tailIn(body))
      else if (name === "error") throw new Error(body.message ?? data)
    }
  }
}

function compare(place, tail) {
  if (tail < place.at) throw new Ended(`its tail lies before ${place.at}: it was made anew`)
}

function arrived({ records }, place, on) {
  if (!Array.isArray(records)) throw new Ended("not an S2 stream: no records in the answer")
  for (const record of records) {
    if (record.seq_num < place.at) continue
    place.at = record.seq_num + 1
    place.came += 1
    on.batch({ ...shown(record), offset: `${place.at}`, upToDate: false, closed: false })
  }
}

/** A body as JSON if it is an object or an array, else as text; a record with headers as both. */
function shown({ body = "", headers = [] }) {
  if (headers.length) return { kind: "json", messages: [{ headers, body }] }
  try {
    if (/^\s*[[{]/.test(body)) return { kind: "json", messages: [JSON.parse(body)] }
  } catch {
    // It only looks like JSON.
  }
  return { kind: "text", messages: [body] }
}
