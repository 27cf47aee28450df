// One stream: what is known of it, its tape, its live readers, and purging it.

import * as api from "./api.js"
import { publicAddress, tailLink } from "./addresses.js"
import { confirming, h, say, sayOffset } from "./dom.js"
import * as say_ from "./format.js"
import { TapeDrawing } from "./tape.js"

const MOST_READERS = 12

const facts = {
  tail: (one) => one.tail ?? "–",
  state: (one) => (one.is_closed ? "closed" : one.is_followed ? "open, followed live" : "open"),
  type: (one) => one.content_type ?? "not known",
  held: (one) => `${say_.bytes(one.bytes)} in ${say_.many(one.blocks, "block")}`,
  reads: (one) => `${say_.count(one.reads)}, ${say_.share(one.hit_ratio)} hits`,
  sent: (one) => say_.bytes(one.sent_bytes),
  "live readers": (one) => say_.count(one.readers),
  "origin seen": (one) => (one.is_followed ? "now" : `${say_.span(one.contacted_s)} ago`),
  lifetime: (one) => lifetime(one.lifetime),
  incarnation: (one) => one.incarnation,
  origin: (one) => one.origin,
  "shared by": (one) => one.partition,
  keys: (one) => one.surrogate_keys?.join(" ") || "none",
}

function lifetime(life) {
  if (life === null || life === undefined) return "not known yet"
  if (typeof life !== "object") return String(life)
  if (life.ttl_s != null) return `${say_.span(life.ttl_s)} after the last use`
  if (life.expires_at != null) return `until ${new Date(life.expires_at * 1000).toLocaleString()}`
  return "no end"
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
    h("p", { class: "crumbs" }, h("a", { href: "#/streams" }, "← Streams")),
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

  async function purge(soft) {
    try {
      const { purged } = await api.purge(soft ? { stream: path, soft } : { stream: path })
      say(done, `${say_.many(purged, "tape")} ${soft ? "to be looked at before the next hit" : "dropped"}`)
    } catch (error) {
      say(done, error.message)
    }
  }

  async function show(signal) {
    let one
    try {
      one = await api.stream(id, signal)
    } catch (error) {
      if (error.status !== 404) throw error
      say(title, path ?? "This stream is not remembered")
      say(done, "It is no longer on a tape: evicted, purged or gone.")
      links.replaceChildren(done)
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
    }
    path = one.query ? `${one.path}?${one.query}` : one.path
    say(title, path)
    document.title = `${path} · ${about.node}`
    for (const [name, of] of Object.entries(facts)) (name === "tail" ? sayOffset : say)(values[name], of(one))
    tape.show(one)
    const shown = one.live_readers.slice(0, MOST_READERS)
    readers.replaceChildren(
      ...shown.map((reader) =>
        h("li", {}, h("span", { class: `badge is-${reader.mode}` }, reader.mode), reader.lived_s === null ? " " : ` for ${say_.span(reader.lived_s)} `, h("code", { title: reader.at }, say_.offset(reader.at))),
      ),
      ...(one.live_readers.length > shown.length ? [h("li", { class: "quiet" }, `and ${say_.count(one.live_readers.length - shown.length)} more`)] : []),
      ...(one.live_readers.length ? [] : [h("li", { class: "quiet" }, "Nobody reads it live now.")]),
    )
  }

  return { element, show, period_ms: 1000, close: () => tape.close() }
}
