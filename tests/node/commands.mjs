// What every program here does that is driven line by line: a command as JSON on stdin, what comes of it as JSON on
// stdout.  `{"do": name, ...}` becomes `{"done": name, ...result}` or `{"failed": name, message, status}`.

import { createInterface } from "node:readline"

export const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)

/// Carries out commands until stdin ends.
export const obey = async (commands) => {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    commands[command.do](command).then(
      (result) => say({ done: command.do, ...result }),
      (error) =>
        say({ failed: command.do, name: error.name, code: error.code, status: error.status, message: error.message })
    )
  }
}

/// Conditions that are asked again whenever somebody says that something has changed.
export class Conditions {
  #waiting = new Set()

  /// Resolves with the first value of `condition` that is not false, null or undefined.
  until(condition) {
    return new Promise((resolve, reject) => {
      const ask = () => {
        try {
          const value = condition()
          if (value === false || value === null || value === undefined) return
          resolve(value)
        } catch (error) {
          reject(error)
        }
        this.#waiting.delete(ask)
      }
      this.#waiting.add(ask)
      ask()
    })
  }

  changed = () => {
    for (const ask of [...this.#waiting]) ask()
  }
}
