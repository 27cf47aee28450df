// Renders one message of a stream: JSON in colours, text as it is, bytes in hexadecimal.

import { h } from "./dom.js"
import { bytes as say_bytes, clock, offset as short } from "./format.js"

const MOST_CHARACTERS = 20_000
const MOST_BYTES = 512
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g

/** JSON as text with the kinds of its tokens marked. */
export function coloured(text) {
  const parts = []
  let at = 0
  for (const match of text.matchAll(TOKEN)) {
    parts.push(text.slice(at, match.index))
    const [whole, string, colon] = match
    if (string && colon) parts.push(h("span", { class: "j-key" }, string), colon)
    else parts.push(h("span", { class: string ? "j-string" : /^[tfn]/.test(whole) ? "j-word" : "j-number" }, whole))
    at = match.index + whole.length
  }
  parts.push(text.slice(at))
  return parts
}

/** Bytes as lines of sixteen, followed by their printable characters. */
export function hexadecimal(bytes) {
  const lines = []
  for (let at = 0; at < Math.min(bytes.length, MOST_BYTES); at += 16) {
    const row = [...bytes.subarray(at, Math.min(at + 16, MOST_BYTES))]
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")
    const readable = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex.padEnd(47)}  ${readable}`)
  }
  return lines.join("\n")
}

const cut = (text) => (text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}… (${text.length} characters)` : text)

/** A message as text, for filtering and copying. */
export function plain(kind, message) {
  if (kind === "json") return JSON.stringify(message)
  return kind === "text" ? message : hexadecimal(message)
}

function content(kind, message) {
  if (kind === "json") {
    const flat = JSON.stringify(message)
    return coloured(cut(flat.length <= 100 ? flat.replaceAll(/([,:])(?=["{[\d\-tfn])/g, "$1") : JSON.stringify(message, null, 2)))
  }
  if (kind === "text") return cut(message)
  return `${hexadecimal(message)}${message.length > MOST_BYTES ? `\n… ${say_bytes(message.length)}` : ""}`
}

/** The element of a message that arrived `at` (a Date) in a batch that ended at `offset`. */
export const line = (kind, message, at, offset) =>
  h("li", { class: "message" }, h("span", { class: "when" }, h("time", {}, clock(at)), h("code", { title: offset }, short(offset, 14))), h("pre", { class: kind === "bytes" && "is-bytes" }, content(kind, message)))
