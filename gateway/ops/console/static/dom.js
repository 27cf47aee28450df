// Builds elements without markup: the contents of streams are never parsed as HTML.

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

/** Set an element's text if it differs, so that a selection in it survives a refresh. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** Whether text of the element is selected: replacing it would take the selection away. */
export function isSelected(element) {
  const selection = getSelection()
  return !selection.isCollapsed && element.contains(selection.anchorNode)
}

/** A part of an offset longer than this is not a number and may wrap anywhere. */
const LONGEST_NUMBER = 24

/** An offset as nodes that wrap after its separators and never inside a number. */
export const offsetParts = (text) =>
  text
    .split(/(?<=[_:/-])/)
    .flatMap((part) => [h("span", { class: part.length <= LONGEST_NUMBER && "whole" }, part), document.createElement("wbr")])

/** Set an element's content if its text differs; a part may be an array from `offsetParts`. */
export function sayParts(element, ...parts) {
  const wanted = parts.flat()
  if (element.textContent !== wanted.map((part) => part.textContent ?? part).join("")) element.replaceChildren(...wanted)
}

/** Set an element's text to an offset. */
export const sayOffset = (element, text) => sayParts(element, offsetParts(text))

/** A button that asks for confirmation in place, because a dialog would hide the stream.  Moving the focus away cancels. */
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
