// What an entry of a channel's log tells of its message beside the record (field `m`), since what a step costs grows with the words of its commands:
// f64 messageId, u32 `red` of the channel's head through it, both big-endian. `lua/place.lua` and `lua/entry.lua` are the other half. Pure.

const COUNTED_AT = 8;
const BYTES = 12;

export function encodeEntryFacts(messageId: number, counted: number): Buffer {
  const facts = Buffer.alloc(BYTES);
  facts.writeDoubleBE(messageId);
  facts.writeUInt32BE(counted, COUNTED_AT);
  return facts;
}
