// Module that is loaded before the built program. It shifts the wall clock of the process by the
// number of milliseconds in the file CLOCK_FILE, and writes this number to `<file>.seen` when it is
// in effect. The monotonic clock and the clock of Redis are not shifted.

import { readFileSync, writeFileSync } from "node:fs";

const file = process.env.CLOCK_FILE ?? "";
const RealDate = Date;
const realNow = Date.now;
let shift = readFileSync(file, "utf8");
const now = () => realNow() + Number(shift);

globalThis.Date = class extends RealDate {
  constructor(...args: readonly []) {
    // The other forms of the constructor do not read the clock.
    super(...((args.length === 0 ? [now()] : args) as readonly [number]));
  }
  static override now = now;
} as DateConstructor;
writeFileSync(`${file}.seen`, shift);
setInterval(() => {
  const next = readFileSync(file, "utf8");
  if (next === "" || next === shift) return;
  shift = next;
  writeFileSync(`${file}.seen`, shift);
}, 5).unref();
