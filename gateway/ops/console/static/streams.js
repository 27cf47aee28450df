// The streams that the gateway holds: by prefix of the path, in pages, or the busiest.

import * as api from "./api.js"
import { arrows, h, isSelected, say } from "./dom.js"
import * as say_ from "./format.js"

const ORDERS = [
  ["", "All"],
  ["requests", "Most read"],
  ["subscribers", "Most readers"],
  ["bytes", "Most bytes"],
]
const PAGE = 50

export const streamLink = (stream) => `#/streams/${encodeURIComponent(stream.id)}`

function badges(stream) {
  return [
    stream.readers > 0 && h("span", { class: "badge is-live" }, `${say_.count(stream.readers)} live`),
    stream.is_closed && h("span", { class: "badge" }, "closed"),
    stream.protocol === "s2" && h("span", { class: "badge", title: "an S2 stream" }, "S2"),
    stream.is_private && h("span", { class: "badge", title: `shared by ${stream.partition}` }, "private"),
  ]
}

/** Explanations of the headings. */
const TITLES = {
  "from memory": "Reads answered without the origin. Live reads and reads that share one fetch spare the origin as well, and are not among them.",
}

/** The columns of the table; all but the type are numbers. */
const COLUMNS = {
  type: (stream) => (stream.records === null ? (stream.content_type ?? "–").split(";")[0] : say_.many(stream.records, "record")),
  bytes: (stream) => say_.bytes(stream.bytes),
  blocks: (stream) => say_.count(stream.blocks),
  readers: (stream) => say_.count(stream.readers),
  reads: (stream) => say_.count(stream.reads),
  "from memory": (stream) => say_.share(stream.hit_ratio),
  sent: (stream) => say_.bytes(stream.sent_bytes),
  "origin seen": (stream) => (stream.is_followed ? "now" : `${say_.span(stream.contacted_s)} ago`),
}

/** Streams as a table; a list of cards on a narrow page. */
export function table(streams, columns = Object.keys(COLUMNS)) {
  const kind = (name) => name !== "type" && "number"
  const rows = streams.map((stream) =>
    h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        h("a", { href: streamLink(stream), title: `${stream.origin}${stream.path}` }, stream.path + (stream.query ? `?${stream.query}` : "")),
        badges(stream),
      ),
      columns.map((name) => h("td", { "data-label": name, class: kind(name) }, COLUMNS[name](stream))),
    ),
  )
  const element = h(
    "table",
    { class: "streams" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "stream"), columns.map((name) => h("th", { scope: "col", class: kind(name), title: TITLES[name] }, name)))),
    h("tbody", {}, rows),
  )
  arrows(element, "a", "ArrowUp", "ArrowDown")
  return element
}

/** The place in the list that was seen last, for the way back from a stream. */
let place = "#/streams"
let scrolled = 0

export const listLink = () => place

export function streamsView(parameters) {
  let by = ORDERS.some(([value]) => value === parameters.get("by")) ? parameters.get("by") : ""
  const cursors = ["", ...parameters.getAll("after")]
  let returns = place === `#/streams${parameters.size ? `?${parameters}` : ""}` ? scrolled : 0
  let next = null
  let shown = ""

  const search = h("input", {
    type: "search",
    id: "search",
    placeholder: "/path the stream begins with",
    "aria-label": "Search by the beginning of the path",
    spellcheck: "false",
    autocomplete: "off",
    value: parameters.get("prefix") ?? "",
    oninput: () => {
      cursors.length = 1
      if (by) choose("")
      refresh()
    },
  })
  const orders = ORDERS.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": String(value === by), onclick: () => choose(value) }, label),
  )
  const list = h("div", { class: "card wide" })
  const where = h("span", { class: "quiet", role: "status" })
  const before = h("button", { type: "button", onclick: () => (cursors.pop(), refresh()) }, "← Before")
  const after = h("button", { type: "button", onclick: () => (cursors.push(next), refresh()) }, "Next →")
  const element = h(
    "div",
    {},
    h("h1", {}, "Streams"),
    h("div", { class: "tools" }, search, h("div", { class: "segments", role: "group", "aria-label": "Order" }, orders)),
    list,
    h("div", { class: "pager" }, before, where, after),
  )

  function choose(value) {
    by = value
    orders.forEach((button, at) => button.setAttribute("aria-pressed", String(ORDERS[at][0] === by)))
    cursors.length = 1
    refresh()
  }

  let refresh = () => {}

  /** The beginning of a path, which may be typed without its slash. */
  const wanted = () => {
    const text = search.value.trim()
    return text && !text.startsWith("/") ? `/${text}` : text
  }

  /** Keep the place in the address, so that Back and a reload lead to it. */
  function keep() {
    const kept = new URLSearchParams()
    if (search.value.trim()) kept.set("prefix", search.value.trim())
    if (by) kept.set("by", by)
    for (const cursor of cursors.slice(1)) kept.append("after", cursor)
    place = `#/streams${kept.size ? `?${kept}` : ""}`
    if (location.hash !== place) history.replaceState(null, "", place)
  }

  async function show(signal) {
    const prefix = wanted()
    const after_ = cursors.at(-1)
    keep()
    let found
    try {
      found = by ? await api.top(by, PAGE, signal) : await api.streams({ prefix, limit: PAGE, after: after_ }, signal)
    } catch (error) {
      if (!(error instanceof api.Refused)) throw error
      found = { streams: [], refused: error.message }
    }
    // Drop the answer to a request made before the search or the page changed.
    if (prefix !== wanted() || after_ !== cursors.at(-1)) return
    next = found.next ?? null
    before.hidden = cursors.length < 2
    after.hidden = !next
    const first = (cursors.length - 1) * PAGE
    const text = found.streams.length ? `${first + 1} to ${first + found.streams.length}` : ""
    say(where, text)
    const fresh = JSON.stringify(found)
    if (fresh === shown || isSelected(list)) return
    shown = fresh
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null
    const nothing = found.refused ? `Not a path that a stream can have: ${found.refused}` : prefix ? `No stream that is remembered begins with ${prefix}.` : "No stream is remembered yet: they appear when they are read."
    list.replaceChildren(found.streams.length ? table(found.streams) : h("p", { class: "quiet" }, nothing))
    if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus()
    if (returns) scrollTo(0, returns)
    returns = 0
  }

  return { element, show, period_ms: 2000, onRefresh: (ask) => (refresh = ask), close: () => (scrolled = scrollY), search }
}
