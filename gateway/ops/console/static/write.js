// The forms that create, append to, close and delete a stream; each shows the gateway's answer.

import * as api from "./api.js"
import { confirming, field, h, offsetParts, say, sayParts } from "./dom.js"

const TYPES = ["application/json", "text/plain", "application/octet-stream"]

/** The meaning of a status by command, for answers without text. */
const WORDS = { create: { 200: "was there already, as asked", 201: "created", 204: "was there already, as asked" }, append: { 200: "appended", 204: "appended" }, close: { 204: "closed", 200: "closed" }, delete: { 200: "deleted", 202: "deleted", 204: "deleted" } }

/** `address()` and `type()` give the stream; `tail()` shows it. */
export function forms({ address, type, tail, path }) {
  const said = h("p", { class: "said", role: "status" })
  const types = h("select", { "aria-label": "Content type" }, TYPES.map((name) => h("option", { value: name }, name)))
  const ttl = h("input", { type: "number", min: 1, placeholder: "none", inputmode: "numeric" })
  const body = h("textarea", { rows: 5, spellcheck: "false", placeholder: '{"hello": "world"}', id: "body" })
  let last = ""

  async function write(command) {
    if (!path.reportValidity()) return false
    say(said, "…")
    said.className = "said"
    try {
      const { status, text, headers } = await api.write({ ...address(), ...command })
      const isDone = status < 300
      said.className = isDone ? "said is-done" : "said error"
      const words = WORDS[command.do][status] ?? text ?? ""
      const offset = headers["stream-next-offset"]
      sayParts(said, `${status} ${isDone ? words : text || words}`, offset ? [", now at ", ...offsetParts(offset)] : [])
      return isDone
    } catch (error) {
      said.className = "said error"
      say(said, error.message)
      return false
    }
  }

  async function create() {
    const made = { do: "create", content_type: types.value }
    if (ttl.value) made.ttl_s = Number(ttl.value)
    if (await write(made)) {
      last = types.value
      tail()
    }
  }

  async function append() {
    const as = address().basin ? "" : type() || last || types.value
    if (as.startsWith("application/json")) {
      try {
        JSON.parse(body.value)
      } catch (error) {
        said.className = "said error"
        say(said, `Not JSON: ${error.message}`)
        body.focus()
        return
      }
    }
    if (await write({ do: "append", content_type: as, body: body.value })) {
      body.select()
      tail()
    }
  }

  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault()
      append()
    }
  })

  const remove = confirming("Delete", "Really delete?", () => write({ do: "delete" }), { class: "danger" })

  const submitting = (work) => (event) => {
    event.preventDefault()
    work()
  }
  return h(
    "section",
    { class: "card writing", "aria-label": "Writing" },
    h("h2", {}, "Write"),
    h("form", { class: "stack", onsubmit: submitting(append), id: "append" }, field("Message", body, "Ctrl Enter appends"), h("button", { type: "submit", class: "primary" }, "Append")),
    h(
      "form",
      { class: "stack create", onsubmit: submitting(create), id: "create" },
      field("Content type", types),
      field("TTL in seconds", ttl),
      h("button", { type: "submit" }, "Create"),
    ),
    h("div", { class: "tools" }, h("button", { type: "button", onclick: () => write({ do: "close" }) }, "Close the stream"), remove),
    said,
  )
}
