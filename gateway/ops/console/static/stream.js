// One stream: its facts, its tape, its live readers, and its purge buttons.

import * as api from "./api.js"
import { publicAddress, tailLink } from "./addresses.js"
import { confirming, h, offsetParts, say, sayOffset, sayParts } from "./dom.js"
import * as say_ from "./format.js"
import { listLink } from "./streams.js"
import { TapeDrawing } from "./tape.js"

const MOST_GROUPS = 12

/** A stream of which no bytes are held. */
const EMPTY = { tape: [], tail: null, is_closed: false, live_readers: [] }

const facts = {
  tail: (one) => one.tail ?? "–",
  state: (one) => (one.is_closed ? "closed" : one.is_followed ? "open, followed live" : "open"),
  "origin's session": (one) => session(one.session),
  type: (one) => (one.protocol === "s2" ? "records" : one.content_type ?? "not known"),
  held: (one) => `${one.records === null ? "" : `${say_.many(one.records, "record")}, `}${say_.bytes(one.bytes)} in ${say_.many(one.blocks, "block")}`,
  reads: (one) => `${say_.count(one.reads)}, ${say_.share(one.hit_ratio)} from memory`,
  sent: (one) => say_.bytes(one.sent_bytes),
  "live readers": (one) => say_.count(one.readers),
  protocol: (one) => (one.protocol === "s2" ? "S2" : "Durable Streams"),
  "origin seen": (one) => (one.is_followed ? "now" : `${say_.span(one.contacted_s)} ago`),
  lifetime: (one) => lifetime(one.lifetime),
  incarnation: (one) => one.incarnation,
  origin: (one) => one.origin,
  "shared by": (one) => one.partition,
  keys: (one) => one.surrogate_keys?.join(" ") || "none",
}

function session(open) {
  if (!open) return "none"
  const heard = open.heard_s === null ? "" : `, tail heard ${say_.span(open.heard_s)} ago`
  return `at ${open.position}, ${open.is_at_tail ? "the tail" : "catching up"}${heard}`
}

function lifetime(life) {
  if (life === null || life === undefined) return "not known yet"
  if (typeof life !== "object") return String(life)
  if (life.ttl_s != null) return `${say_.span(life.ttl_s)} after the last use`
  if (life.expires_at != null) return `until ${new Date(life.expires_at * 1000).toLocaleString()}`
  return "no end"
}

/**
 * Live readers grouped by offset and mode, largest groups first: `{shown, others}`.  `all` is the number of readers,
 * including those beyond the groups shown or missing from `readers`.
 */
export function groups(readers, all) {
  const found = new Map()
  for (const { mode, at, clients, lived_s } of readers) {
    const key = `${mode} ${at}`
    const group = found.get(key)
    if (!group) found.set(key, { mode, at, clients, lived_s })
    else {
      group.clients += clients
      if (lived_s !== null) group.lived_s = Math.max(group.lived_s ?? 0, lived_s)
    }
  }
  const shown = [...found.values()].sort((one, other) => other.clients - one.clients).slice(0, MOST_GROUPS)
  return { shown, others: Math.max(0, all - shown.reduce((sum, group) => sum + group.clients, 0)) }
}

export function streamView(id, about) {
  const title = h("h1", { class: "path" }, "…")
  const links = h("div", { class: "tools" })
  const values = Object.fromEntries(Object.keys(facts).map((name) => [name, h("dd", {})]))
  const tape = new TapeDrawing()
  const readers = h("ul", { class: "readers" })
  const done = h("span", { class: "quiet", role: "status" })
  const element = h(
    "div",
    {},
    h("p", { class: "crumbs" }, h("a", { href: listLink() }, "← Streams")),
    title,
    links,
    h("section", { class: "card wide" }, h("h2", {}, "Tape"), tape.element),
    h(
      "div",
      { class: "cards" },
      h("section", { class: "card wide-2" }, h("h2", {}, "Known"), h("dl", { class: "facts" }, Object.entries(values).map(([name, value]) => [h("dt", {}, name), value]))),
      h("section", { class: "card" }, h("h2", {}, "Live readers"), readers),
    ),
  )
  let path = null
  let name = null
  let refresh = () => {}

  async function purge(soft) {
    try {
      const { purged } = await api.purge(soft ? { stream: path, soft } : { stream: path })
      say(done, `${say_.many(purged, "tape")} ${soft ? "to be looked at before the next hit" : "dropped"}`)
      // A request in flight began before the purge.
      refresh()
    } catch (error) {
      say(done, error.message)
    }
  }

  function showReaders(listed, all) {
    const { shown, others } = groups(listed, all)
    const lines = shown.map(({ mode, at, clients, lived_s }) => [
      h("span", { class: `badge is-${mode}` }, `${say_.count(clients)} ${mode}`),
      lived_s === null ? "" : ` for ${clients > 1 ? "up to " : ""}${say_.span(lived_s)}`,
      " at ",
      h("code", { title: at }, at === null ? "–" : offsetParts(at)),
    ])
    if (others) lines.push([h("span", { class: "quiet" }, `and ${say_.count(others)} more`)])
    if (!lines.length) lines.push([h("span", { class: "quiet" }, "No client reads it live now.")])
    const old = [...readers.children]
    if (old.length !== lines.length) readers.replaceChildren(...lines.map(() => h("li", {})))
    ;[...readers.children].forEach((line, at) => sayParts(line, ...lines[at]))
  }

  async function show(signal) {
    let one
    try {
      one = await api.stream(id, signal)
    } catch (error) {
      if (error.status !== 404) throw error
      say(title, name ?? "This stream is not remembered")
      say(done, "It is no longer on a tape: evicted, purged or gone.")
      links.replaceChildren(done)
      tape.show(EMPTY)
      Object.values(values).forEach((value) => say(value, "–"))
      showReaders([], 0)
      // If the stream is read again, it is shown like a new one.
      path = null
      return
    }
    if (path === null) {
      const address = publicAddress(one, about.routes)
      links.replaceChildren(
        address ? h("a", { class: "button primary", href: tailLink(address) }, "Tail it live") : "",
        h("button", { type: "button", title: "Bytes stay; the origin is looked at before the next hit", onclick: () => purge(true) }, "Soft purge"),
        confirming("Purge", "Really purge?", () => purge(false), { title: "Drop the tape" }),
        done,
      )
      if (name !== null) say(done, "")
    }
    path = name = one.query ? `${one.path}?${one.query}` : one.path
    say(title, path)
    document.title = `${path} · ${about.node}`
    for (const [name, of] of Object.entries(facts)) (name === "tail" ? sayOffset : say)(values[name], of(one))
    tape.show(one)
    showReaders(one.live_readers, one.readers)
  }

  return { element, show, period_ms: 1000, onRefresh: (ask) => (refresh = ask), close: () => tape.close() }
}
