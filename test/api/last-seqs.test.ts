// What a caller has of each conversation, out of one string whose separators may stand in ids.

import { readLastSeqs } from "../../src/api/last-seqs.ts";
import type { ChannelRef } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";

const group = (id: string): ChannelRef => ({ id, type: 2 });
const person = (id: string): ChannelRef => ({ id, type: 1 });

t.test("plain entries are read, unknown channels have nothing", async (t) => {
  const known = [group("a"), person("a"), person("b")];
  const seqOf = readLastSeqs("a:2:5|a:1:7|gone:2:9", known);
  t.same(known.map(seqOf), [5, 7, 0]);
  t.equal(readLastSeqs("", known)(group("a")), 0);
});

t.test("ids may contain | and :", async (t) => {
  const known = [group("a|b"), person("x:1:5"), group("|"), group("c:2")];
  const seqOf = readLastSeqs("a|b:2:3|x:1:5:1:8||:2:4|c:2:2:6", known);
  t.same(known.map(seqOf), [3, 8, 4, 6]);
});

t.test("the longest id there is counts", async (t) => {
  const text = "a:2:1|b:2:7";
  t.same([group("a"), group("b")].map(readLastSeqs(text, [group("a"), group("b")])), [1, 7]);
  const joined = group("a:2:1|b");
  t.equal(readLastSeqs(text, [group("b"), joined])(joined), 7);
});

t.test("what is broken spoils itself only", async (t) => {
  const known = [group("a"), group("b")];
  for (const text of ["a:2|b:2:7", "a:2:x|b:2:7", "::|b:2:7|", "a:2:|b:2:7|:2:1"])
    t.same(known.map(readLastSeqs(text, known)), [0, 7], text);
});

t.test("a list of any text is read at once", async (t) => {
  const ends = "|:1:1";
  const texts = [
    `${"|".repeat(131_000)}:1:1`,
    ends.repeat(26_000),
    `${"a:1:1|".repeat(21_000)}a:1:1`,
    `${"|".repeat(250)}:1:1`.repeat(512),
  ];
  const lengths = Array.from({ length: 128 }, (_, at) => at + 1);
  const plain = lengths.map((length) => person("x".repeat(length)));
  const alike = lengths.map((length) => person(ends.repeat(26).slice(0, length)));
  for (const text of texts)
    for (const known of [[], plain, alike]) {
      const before = process.cpuUsage(); // a busy machine is no fault of it
      readLastSeqs(text, known);
      const { user } = process.cpuUsage(before);
      t.ok(user < 800_000, text.slice(0, 20));
    }
});

t.test("the place of an entry does not matter", async (t) => {
  const ids = Array.from({ length: 3000 }, (_, at) => `u:${at}|${at % 7}`);
  const text = ids.map((id, at) => `${id}:1:${at + 1}`).join("|");
  const seqOf = readLastSeqs(text, ids.map(person));
  t.same(
    ids.filter((id, at) => seqOf(person(id)) !== at + 1),
    [],
  );
  t.equal(seqOf(group("u:0|0")), 0);
});
