// Frames one behind another: what was given out of one stays as it was, however much follows.

import { Frame } from "../../../../src/store/embedded/engine/frame.ts";
import { FRAME_HEADER_BYTES } from "../../../../src/store/embedded/engine/segment.ts";
import { t } from "../../../support/suite.ts";

const LENGTH_BYTES = 4;

/** Adds a record of `size` bytes `fill`; where it stands. */
function add(frame: Frame, size: number, fill: number): Buffer {
  const start = frame.reserve(size);
  const record = frame.bytes.subarray(start, start + size).fill(fill);
  frame.add(start + size);
  return record;
}

/** The records of a frame's bytes. */
function recordsOf(bytes: Buffer | undefined): Buffer[] {
  const records: Buffer[] = [];
  let at = FRAME_HEADER_BYTES;
  while (bytes !== undefined && at < bytes.length) {
    const start = at + LENGTH_BYTES;
    at = start + bytes.readUInt32LE(at);
    records.push(bytes.subarray(start, at));
  }
  return records;
}

t.test("what stands in a frame stays, however much follows", async (t) => {
  const frame = new Frame();
  const given: { readonly record: Buffer; readonly copy: Buffer }[] = [];
  for (let n = 0; n < 400; n++) {
    // Sizes that leave any room at the end of a buffer, and frames larger than one.
    const sizes = [1 + ((n * 7919) % 9000), n % 50 === 7 ? 700_000 : 3, n % 5];
    frame.begin(n % 3 === 0 ? 0 : sizes.reduce((sum, size) => sum + size));
    t.equal(frame.finish(), undefined, "nothing was added");
    const records = sizes.map((size) => add(frame, size, n % 256));
    const written = frame.finish();
    t.same(recordsOf(written), records, `frame ${n}`);
    for (const record of [...records, ...recordsOf(written)])
      given.push({ record, copy: Buffer.from(record) });
  }
  t.ok(given.every(({ record, copy }) => record.equals(copy)));
});
