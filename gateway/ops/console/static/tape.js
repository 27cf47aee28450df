// Draws one stream's tape: blocks in the order of their offsets, gaps between them, the tail, and the live readers.
//
// A block's width is in proportion to its bytes, with a visible minimum.  Offsets are compared, never parsed, so the gap
// between two blocks has no known width.  S2's offsets are numbers, and are compared as numbers.  Overlapping fetches are
// stored as separate blocks: a block that begins inside another is drawn thin below it, at an arbitrary position.

import { arrows, h, offsetParts, s, say, sayParts } from "./dom.js"
import * as say_ from "./format.js"

const LEAST = 7
const GAP = 26
const SPACE = 3
const TOP = 64
const DEPTH = 54
const TICKS = 16

const ascending = (one, other) => (one < other ? -1 : one > other ? 1 : 0)

/** Numbers of 64 bits, without leading zeros: the longer one is greater. */
const byNumber = (one, other) => one.length - other.length || ascending(one, other)

/** Compares offsets; `-1` comes before all others, however they are spelled. */
const rank = (token) => (token === "-1" ? "" : token)

/** The layout in pixels: `{width, blocks, gaps, tail, pins}`. */
export function layout(stream, room) {
  const order = stream.protocol === "s2" ? byNumber : ascending
  const blocks = stream.tape.toSorted((one, other) => order(rank(one.start), rank(other.start)))
  const bytes = blocks.reduce((sum, block) => sum + block.bytes, 0)
  const share = bytes ? Math.max(0, room - 120 - blocks.length * (LEAST + SPACE)) / bytes : 0
  const placed = []
  const gaps = []
  let x = 14
  let end = null
  let cover = null
  let beside = 0
  for (const block of blocks) {
    const width = LEAST + block.bytes * share
    if (end !== null && order(block.start, end) < 0 && order(block.end, end) <= 0) {
      const shown = Math.min(width, cover.width)
      placed.push({ ...block, x: cover.x + ((cover.width - shown) * (1 + (beside % 3))) / 4, width: shown, isBeside: true })
      beside += 1
      continue
    }
    if (end !== null && order(end, block.start) < 0) {
      gaps.push({ x, width: GAP, start: end, end: block.start })
      x += GAP
    }
    cover = { ...block, x, width }
    placed.push(cover)
    x += width + SPACE
    end = block.end
  }
  let tail = null
  if (stream.tail !== null && stream.tail !== undefined) {
    if (end !== null && end !== stream.tail && order(end, stream.tail) < 0) {
      gaps.push({ x, width: GAP, start: end, end: stream.tail })
      x += GAP
    }
    tail = { x: x + 2, offset: stream.tail }
    x += 8
  }
  return { width: Math.max(room, x + 60), blocks: placed, gaps, tail, pins: pins(stream.live_readers, placed, gaps, tail, order) }
}

/** Live readers by offset and mode; an offset inside a block is drawn at the block's middle. */
function pins(readers, blocks, gaps, tail, order) {
  const groups = new Map()
  for (const { at, mode, clients } of readers) {
    if (at === null) continue
    const x = place(at, blocks, gaps, tail, order)
    const key = `${Math.round(x)} ${mode}`
    const group = groups.get(key) ?? { x, mode, at, count: 0 }
    group.count += clients
    groups.set(key, group)
  }
  return [...groups.values()].sort((one, other) => one.x - other.x || ascending(one.mode, other.mode))
}

function place(at, blocks, gaps, tail, order) {
  if (tail && at === tail.offset) return tail.x
  for (const block of blocks.filter(({ isBeside }) => !isBeside)) {
    if (at === block.start) return block.x
    if (at === block.end) return block.x + block.width
    if (order(at, block.start) > 0 && order(at, block.end) < 0) return block.x + block.width / 2
  }
  const gap = gaps.find(({ start, end }) => order(at, start) > 0 && order(at, end) < 0)
  if (gap) return gap.x + gap.width / 2
  return tail && order(at, tail.offset) > 0 ? tail.x + 10 : 6
}

/** The description of a block, in words and offsets. */
const described = (block) => [
  block.age_s === null
    ? `${say_.bytes(block.bytes)}, ${say_.many(block.tokens, "record")}. From `
    : `${say_.bytes(block.bytes)}, ${say_.many(block.tokens, "offset")} known, laid ${say_.span(block.age_s)} ago. From `,
  offsetParts(block.start),
  " to ",
  offsetParts(block.end),
  block.isBeside ? ", beside what is held of the same" : "",
]

const told = (block) => described(block).flat().map((part) => part.textContent ?? part).join("")

/** The drawing: `element`, and `show(stream)` for each refresh. */
export class TapeDrawing {
  constructor() {
    this.picture = s("svg", { class: "tape", role: "group", "aria-label": "The tape" })
    this.scroller = h("div", { class: "tape-scroll" }, this.picture)
    this.told = h("p", { class: "tape-told quiet", role: "status" }, "")
    this.element = h("div", {}, this.scroller, this.told, legend())
    this.at = null
    this.drawn = ""
    this.atEnd = true
    arrows(this.picture, "[tabindex]", "ArrowLeft", "ArrowRight")
    this.resizer = new ResizeObserver(() => this.stream && this.show(this.stream))
    this.resizer.observe(this.scroller)
  }

  show(stream) {
    this.stream = stream
    const room = this.scroller.clientWidth || 600
    const plan = layout(stream, room)
    // Keep an unchanged drawing: ages change, positions do not.
    const key = JSON.stringify([room, stream.is_closed, plan.tail, plan.pins, plan.blocks.map(({ start, end, bytes, tokens }) => [start, end, bytes, tokens])])
    this.plan = plan
    if (key !== this.drawn) {
      this.drawn = key
      this.#draw(stream, plan)
    }
    this.#tell()
  }

  close() {
    this.resizer.disconnect()
  }

  #tell() {
    const block = this.plan.blocks.find(({ start }) => start === this.at)
    const nothing = this.plan.blocks.length ? "Choose a block to see what it holds." : "Nothing is on the tape now."
    if (block) sayParts(this.told, ...described(block))
    else say(this.told, nothing)
  }

  #choose(start) {
    this.at = start
    this.#tell()
  }

  #draw(stream, { width, blocks, gaps, tail, pins }) {
    const hadFocus = this.picture.contains(document.activeElement)
    const isAtEnd = this.scroller.scrollLeft + this.scroller.clientWidth >= this.scroller.scrollWidth - 4
    this.picture.setAttribute("width", width)
    this.picture.setAttribute("height", TOP + DEPTH + 48)
    const bottom = TOP + DEPTH
    const inner = [
      s("line", { class: "tape-base", x1: 0, x2: width, y1: bottom + 6, y2: bottom + 6 }),
      gaps.map((gap) => s("g", { class: "tape-gap" }, s("title", {}, `Not held: ${gap.start} to ${gap.end}`), dots(gap, TOP + DEPTH / 2))),
      blocks.map((block, at) => this.#block(block, this.at === null ? at === blocks.length - 1 : block.start === this.at)),
    ]
    if (blocks.length) {
      inner.push(label(blocks[0].x, bottom + 28, blocks[0].start === "-1" ? "start" : say_.offset(blocks[0].start), "start"))
      if (width > 480 && !tail) inner.push(label(blocks.at(-1).x + blocks.at(-1).width, bottom + 28, say_.offset(blocks.at(-1).end), "end"))
    }
    if (tail) {
      const isRight = tail.x > width / 2
      inner.push(
        s("g", { class: stream.is_closed ? "tape-tail is-closed" : "tape-tail" },
          s("line", { x1: tail.x, x2: tail.x, y1: TOP - 8, y2: bottom + 12 }),
          label(tail.x + (isRight ? 3 : -3), bottom + 42, `${stream.is_closed ? "closed at" : "tail"} ${say_.offset(tail.offset)}`, isRight ? "end" : "start")),
      )
    }
    let lastX = -100
    let level = 0
    for (const pin of pins) {
      level = pin.x - lastX < 62 ? level + 1 : 0
      lastX = pin.x
      inner.push(reader(pin, TOP - 14 - (level % 3) * 17))
    }
    this.picture.replaceChildren(...inner.flat())
    if (hadFocus) this.picture.querySelector('[tabindex="0"]')?.focus()
    if (isAtEnd) this.scroller.scrollLeft = this.scroller.scrollWidth
  }

  #block(block, isChosen) {
    const choose = () => this.#choose(block.start)
    const ticks = block.isBeside ? 0 : Math.min(TICKS, Math.max(0, block.tokens - 1), Math.floor(block.width / 5))
    const age = block.age_s === null ? "is-recent" : block.age_s < 5 ? "is-fresh" : block.age_s < 300 ? "is-recent" : "is-old"
    return s(
      "g",
      {
        class: `tape-block ${age}`,
        tabindex: isChosen ? 0 : -1,
        role: "img",
        "aria-label": told(block),
        onfocus: (event) => {
          for (const other of this.picture.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", "-1")
          event.currentTarget.setAttribute("tabindex", "0")
          choose()
        },
        onpointerenter: choose,
      },
      block.isBeside
        ? s("rect", { x: block.x, y: TOP + DEPTH + 9, width: block.width, height: 6, rx: 2 })
        : s("rect", { x: block.x, y: TOP, width: block.width, height: DEPTH, rx: Math.min(4, block.width / 3) }),
      Array.from({ length: ticks }, (_, at) => {
        const x = block.x + (block.width * (at + 1)) / (ticks + 1)
        return s("line", { x1: x, x2: x, y1: TOP + DEPTH - 12, y2: TOP + DEPTH - 3 })
      }),
    )
  }
}

const label = (x, y, text, anchor) => s("text", { x, y, "text-anchor": anchor }, text)

const dots = (gap, y) => [0.25, 0.5, 0.75].map((part) => s("circle", { cx: gap.x + gap.width * part - SPACE / 2, cy: y, r: 2 }))

function reader(pin, y) {
  const text = pin.count > 1 ? `${say_.count(pin.count)} ${pin.mode}` : pin.mode
  return s(
    "g",
    { class: `tape-pin ${pin.mode === "longpoll" ? "is-longpoll" : "is-sse"}` },
    s("title", {}, `${say_.many(pin.count, "reader")} by ${pin.mode} at ${pin.at}`),
    s("line", { x1: pin.x, x2: pin.x, y1: y + 4, y2: TOP }),
    s("circle", { cx: pin.x, cy: y, r: 4.5 }),
    s("text", { x: pin.x - 9, y: y + 4, "text-anchor": "end" }, text),
  )
}

const legend = () =>
  h(
    "p",
    { class: "legend" },
    h("span", { class: "key" }, h("i", { class: "swatch fresh" }), "laid just now"),
    h("span", { class: "key" }, h("i", { class: "swatch recent" }), "minutes ago"),
    h("span", { class: "key" }, h("i", { class: "swatch old" }), "older"),
    h("span", { class: "key" }, h("i", { class: "swatch ticks" }), "offsets known (their number, not their places)"),
  )
