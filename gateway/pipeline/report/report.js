// Pointing at charts, sorting of tables, tables as CSV.  The page is whole without it; texts are only ever set as text.
"use strict"

const make = (name, text = "", className = "") => {
  const node = document.createElement(name)
  node.textContent = text
  if (className) node.className = className
  return node
}

/** What was measured, where the cell says less; a number where it is one. */
const raw = (cell) => {
  const text = cell.dataset.raw ?? cell.textContent
  return cell.classList.contains("number") ? (text === "" ? null : Number(text.replaceAll(",", ""))) : text
}

// -- charts: the row of the table that is nearest to where the chart is pointed at

for (const frame of document.querySelectorAll(".frame")) {
  const chart = frame.querySelector(".chart")
  const cross = frame.querySelector(".cross")
  const tip = frame.querySelector(".tip")
  const table = frame.parentElement.querySelector("table")
  const heads = [...table.tHead.rows[0].cells].map((cell) => ({ text: cell.textContent, colour: cell.dataset.colour ?? "" }))
  // Sorting the table moves its rows: these are kept in the chart's order.
  const rows = [...table.tBodies[0].rows].map((row) => ({ x: Number(row.dataset.x), texts: [...row.cells].map((cell) => cell.textContent) }))
  if (!rows.length) continue
  let at = null

  const hide = () => {
    at = null
    tip.hidden = true
    cross.setAttribute("visibility", "hidden")
  }
  const show = (index) => {
    if (index === at) return
    at = index
    const { x, texts } = rows[index]
    cross.setAttribute("x1", `${x * 100}%`)
    cross.setAttribute("x2", `${x * 100}%`)
    cross.setAttribute("visibility", "visible")
    const list = make("dl")
    texts.slice(1).forEach((text, nth) => {
      const term = make("dt", heads[nth + 1].text)
      term.dataset.colour = heads[nth + 1].colour
      list.append(term, make("dd", text))
    })
    tip.replaceChildren(make("b", texts[0]), list)
    tip.hidden = false
    const plot = chart.getBoundingClientRect()
    const box = frame.getBoundingClientRect()
    const point = plot.left - box.left + x * plot.width
    const left = point + 12 + tip.offsetWidth <= box.width ? point + 12 : point - 12 - tip.offsetWidth
    tip.style.transform = `translate(${Math.max(0, Math.min(left, box.width - tip.offsetWidth))}px, 4px)`
  }
  const nearest = (x) => {
    let low = 0
    let high = rows.length - 1
    while (low < high) {
      const middle = (low + high) >> 1
      if ((rows[middle].x + rows[middle + 1].x) / 2 < x) low = middle + 1
      else high = middle
    }
    return low
  }
  const point = (event) => {
    const plot = chart.getBoundingClientRect()
    show(nearest((event.clientX - plot.left) / plot.width))
  }
  frame.addEventListener("pointermove", point)
  frame.addEventListener("pointerdown", point)
  frame.addEventListener("pointerleave", hide)
  frame.addEventListener("blur", hide)
  frame.addEventListener("keydown", (event) => {
    const last = rows.length - 1
    const to = { ArrowLeft: (at ?? last + 1) - 1, ArrowRight: (at ?? -1) + 1, Home: 0, End: last }[event.key]
    if (event.key === "Escape") hide()
    if (to === undefined) return
    event.preventDefault()
    show(Math.max(0, Math.min(to, last)))
  })
}

// -- tables

const compare = (a, b) => {
  if (a === b) return 0
  if (a === null) return 1
  if (b === null) return -1
  return typeof a === "number" ? a - b : a.localeCompare(b, "en")
}

for (const table of document.querySelectorAll(".numbers table")) {
  const heads = [...table.tHead.rows[0].cells]
  heads.forEach((head, nth) => {
    const button = make("button", head.textContent)
    button.type = "button"
    head.replaceChildren(button)
    button.addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending"
      heads.forEach((other) => other.removeAttribute("aria-sort"))
      head.setAttribute("aria-sort", falls ? "descending" : "ascending")
      const rows = [...table.tBodies[0].rows].map((row) => [raw(row.cells[nth]), row])
      // What is not known comes last either way.
      rows.sort(([a], [b]) => (falls && a !== null && b !== null ? compare(b, a) : compare(a, b)))
      table.tBodies[0].append(...rows.map(([, row]) => row))
    })
  })
}

/** A field of CSV (RFC 4180).  Text that a spreadsheet would take for a formula is kept from it. */
const field = (value) => {
  if (value === null) return ""
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value)
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

for (const button of document.querySelectorAll(".csv")) {
  button.addEventListener("click", () => {
    const table = button.closest("details").querySelector("table")
    const head = [...table.tHead.rows[0].cells].map((cell) => field(cell.textContent))
    const body = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => field(raw(cell))))
    const text = [head, ...body].map((row) => row.join(",")).join("\r\n") + "\r\n"
    const link = make("a")
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }))
    link.download = `${table.id.replace("numbers-", "")}.csv`
    link.click()
    // The browser has begun to save it by the next turn.
    setTimeout(() => URL.revokeObjectURL(link.href), 1000)
  })
}

const all = document.getElementById("all-numbers")
all.hidden = false
all.setAttribute("aria-pressed", "false")
all.addEventListener("click", () => {
  const open = all.getAttribute("aria-pressed") === "false"
  all.setAttribute("aria-pressed", String(open))
  all.textContent = open ? "Fold all numbers" : "Show all numbers"
  for (const details of document.querySelectorAll(".numbers")) details.open = open
})
