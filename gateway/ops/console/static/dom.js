// Elements without markup: nothing that a stream holds is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg"

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (name === "class") element.setAttribute("class", value)
    else if (name === "value") element.value = value
    else element.setAttribute(name, value === true ? "" : String(value))
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false))
  return element
}

/** An HTML element: `h("p", {class: "quiet"}, "text", child)`; `on…` properties are listeners. */
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children)

/** The same for SVG. */
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children)

/** Set an element's text only where it differs, so that a selection in it survives a refresh. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** Longer parts of an offset are no numbers: they may be wrapped anywhere. */
const LONGEST_NUMBER = 24

/** An offset as nodes that wrap behind its separators and never inside a number. */
export const offsetParts = (text) =>
  text
    .split(/(?<=[_:/-])/)
    .flatMap((part) => [h("span", { class: part.length <= LONGEST_NUMBER && "whole" }, part), document.createElement("wbr")])

/** Set an element's text, only where it differs; what is made by `offsetParts` stands among words as arrays. */
export function sayParts(element, ...parts) {
  const wanted = parts.flat()
  if (element.textContent !== wanted.map((part) => part.textContent ?? part).join("")) element.replaceChildren(...wanted)
}

/** Set an element's text to an offset. */
export const sayOffset = (element, text) => sayParts(element, offsetParts(text))

/** A button that asks, on itself, before it acts: a dialog would hide what it is about.  To leave it is to say no. */
export function confirming(label, question, act, properties = {}) {
  const button = h("button", { type: "button", ...properties }, label)
  let isArmed = false
  const arm = (armed) => {
    isArmed = armed
    say(button, armed ? question : label)
  }
  button.addEventListener("blur", () => arm(false))
  button.addEventListener("click", () => {
    if (isArmed) act()
    arm(!isArmed)
  })
  return button
}

/** A labelled form field. */
export const field = (label, control, hint) =>
  h("label", { class: "field" }, h("span", {}, label), control, hint && h("small", {}, hint))

/** Move the focus between an element's links by the arrow keys. */
export function arrows(container, selector, back, forth) {
  container.addEventListener("keydown", (event) => {
    const step = event.key === back ? -1 : event.key === forth ? 1 : 0
    if (!step || event.target.matches("input, textarea, select")) return
    const all = [...container.querySelectorAll(selector)]
    const next = all[all.indexOf(document.activeElement) + step]
    if (next) {
      event.preventDefault()
      next.focus()
    }
  })
}
