// Frames in one buffer: a slice of a frame stays unchanged when further frames are written.

import { Frame } from "../../../../src/store/embedded/engine/frame.ts";
import { FRAME_HEADER_BYTES } from "../../../../src/store/embedded/engine/segment.ts";
import { t } from "../../../support/suite.ts";

const LENGTH_BYTES = 4;

/** Adds a record of `size` bytes with the value `fill`. Returns its slice. */
function add(frame: Frame, size: number, fill: number): Buffer {
  const start = frame.reserve(size);
  const record = frame.bytes.subarray(start, start + size).fill(fill);
  frame.add(start + size);
  return record;
}

/** Returns the records of a frame. */
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

t.test("records of a frame stay unchanged when further frames are written", async (t) => {
  const frame = new Frame();
  const slices: { readonly record: Buffer; readonly copy: Buffer }[] = [];
  for (let n = 0; n < 400; n++) {
    // Sizes that leave any number of bytes at the end of a buffer, and frames that are larger than
    // a buffer.
    const sizes = [1 + ((n * 7919) % 9000), n % 50 === 7 ? 700_000 : 3, n % 5];
    frame.begin(n % 3 === 0 ? 0 : sizes.reduce((sum, size) => sum + size));
    t.equal(frame.finish(), undefined, "the frame has no record yet");
    const records = sizes.map((size) => add(frame, size, n % 256));
    const written = frame.finish();
    t.same(recordsOf(written), records, `the records of frame ${n} are unchanged`);
    for (const record of [...records, ...recordsOf(written)])
      slices.push({ record, copy: Buffer.from(record) });
  }
  t.ok(slices.every(({ record, copy }) => record.equals(copy)));
});
