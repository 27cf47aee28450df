// A live tail in the browser, with forms to try a stream if the gateway lets the console write.

import * as api from "./api.js"
import { asS2Stream, asTarget } from "./addresses.js"
import { field, h, say } from "./dom.js"
import { Ended, follow } from "./follow.js"
import { followS2 } from "./follow_s2.js"
import * as say_ from "./format.js"
import { line, plain } from "./message.js"
import { forms } from "./write.js"

const KEPT = 500

const option = (value, label, chosen) => h("option", { value, selected: value === chosen }, label)

export function tailView(parameters, about) {
  const path = h("input", { id: "path", placeholder: "/demo", value: parameters.get("path") ?? "", spellcheck: "false", autocomplete: "off", required: true })
  const from = h("select", {}, option("-1", "the start"), option("now", "now"), option("at", "an offset or number"))
  const at = h("input", { placeholder: "offset", "aria-label": "Offset", spellcheck: "false", autocomplete: "off", hidden: true })
  const live = h("select", {}, option("sse", "SSE"), option("long-poll", "long-poll"))
  const host = h("input", { placeholder: "any", value: parameters.get("host") ?? "", spellcheck: "false", autocomplete: "off" })
  const go = h("button", { type: "submit", class: "primary" }, "Tail")
  const state = h("span", { class: "state", role: "status" }, "idle")
  const place = h("code", { class: "quiet" })
  const counted = h("span", { class: "quiet" })
  const hold = h("button", { type: "button", "aria-pressed": "false", title: "Hold (p)" }, "Hold")
  const filter = h("input", { type: "search", placeholder: "filter", "aria-label": "Show only messages with this text", autocomplete: "off" })
  const list = h("ol", { class: "messages", tabindex: 0, "aria-label": "Messages" })
  const empty = h("p", { class: "quiet empty" }, "Messages appear here, the newest at the end.")
  /** Where writes go: the stream, and for S2 its basin. */
  const address = () => {
    const s2 = asS2Stream(path.value)
    return { ...(s2 ? { target: s2.stream, basin: s2.basin } : { target: asTarget(path.value) }), host: host.value.trim() }
  }
  from.addEventListener("change", () => {
    at.hidden = from.value !== "at"
    if (!at.hidden) at.focus()
  })

  let running = null
  /** Messages not on the page yet, at most the last KEPT. */
  let held = []
  let frame = 0
  let messages = 0
  let bytes = 0
  let type = ""

  const form = h(
    "form",
    { class: "tools tail-tools", onsubmit: (event) => (event.preventDefault(), running ? stop() : start()) },
    field("Path", path),
    field("From", h("span", { class: "pair" }, from, at)),
    field("By", live),
    about.routes.some((route) => route.host !== "*") && field("Host", host),
    go,
  )
  const writing = about.may_write
    ? forms({ address, type: () => type, tail: () => running || start(), path })
    : h("section", { class: "card" }, h("h2", {}, "Writing"), h("p", { class: "quiet" }, "The console may not write here: ", h("code", {}, "server.console_writes"), " is off."))
  const element = h(
    "div",
    {},
    h("h1", {}, "Tail"),
    form,
    h(
      "div",
      { class: "cards bench" },
      h("section", { class: "card tail-card" }, h("div", { class: "tail-head" }, state, place, counted, h("span", { class: "grow" }), filter, hold), list, empty),
      writing,
    ),
  )

  function stop() {
    running?.abort()
    running = null
    say(go, "Tail")
  }

  function start() {
    if (!path.reportValidity()) return
    const own = new AbortController()
    running = own
    say(go, "Stop")
    list.replaceChildren()
    held = []
    messages = bytes = 0
    empty.hidden = false
    tell("connecting")
    history.replaceState(null, "", `#/tail?${new URLSearchParams({ path: path.value.trim(), ...(host.value ? { host: host.value } : {}) })}`)
    const { target, basin, host: name } = address()
    const reading = {
      from: from.value === "at" ? at.value.trim() || "-1" : from.value,
      live: live.value,
      signal: own.signal,
      on: {
        state: tell,
        type: (value) => (type = value ?? ""),
        batch: (batch) => running === own && take(batch),
      },
    }
    const following = basin
      ? followS2({ ...reading, stream: target, read: (asked, accept, signal) => api.read(asked, { host: name, basin, accept }, signal) })
      : follow({ ...reading, target, read: (asked, signal) => api.read(asked, { host: name }, signal) })
    following
      .then(() => stop())
      .catch((error) => {
        if (running !== own) return
        stop()
        tell("ended", error instanceof Ended ? error.message : `${error}`)
      })
      .finally(() => own.signal.aborted && running === null && state.dataset.state !== "closed" && state.dataset.state !== "ended" && tell("stopped"))
  }

  function tell(word, more) {
    state.dataset.state = word
    say(state, more ? `${word}: ${more}` : word)
  }

  const fits = (text) => text.toLowerCase().includes(filter.value.trim().toLowerCase())

  function take({ messages: came, kind, offset, closed }) {
    const now = new Date()
    messages += came.length
    for (const message of came) bytes += kind === "bytes" ? message.length : plain(kind, message).length
    // A batch may hold a hundred thousand messages: only visible ones become elements, once per frame.
    held.push(...came.slice(-KEPT).map((message) => ({ kind, message, now, offset })))
    if (held.length > KEPT) held.splice(0, held.length - KEPT)
    say(place, say_.offset(offset, 34))
    place.title = offset
    if (closed) tell("closed")
    frame ||= requestAnimationFrame(pour)
  }

  function drawn({ kind, message, now, offset }) {
    const one = line(kind, message, now, offset)
    one.dataset.text = plain(kind, message).slice(0, 4000)
    one.hidden = !fits(one.dataset.text)
    return one
  }

  function pour() {
    frame = 0
    const isHeld = hold.getAttribute("aria-pressed") === "true"
    say(counted, `${say_.many(messages, "message")}, ${say_.bytes(bytes)}${isHeld && held.length ? `, ${held.length} held` : ""}`)
    if (isHeld || !held.length) return
    const isAtEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 40
    list.append(...held.map(drawn))
    held = []
    while (list.childElementCount > KEPT) list.firstChild.remove()
    empty.hidden = true
    if (isAtEnd) list.scrollTop = list.scrollHeight
  }

  hold.addEventListener("click", () => {
    hold.setAttribute("aria-pressed", String(hold.getAttribute("aria-pressed") !== "true"))
    pour()
  })
  filter.addEventListener("input", () => {
    for (const one of list.children) one.hidden = !fits(one.dataset.text)
  })

  if (path.value) queueMicrotask(start)
  return { element, close: stop, search: path, keys: { p: () => hold.click() } }
}
