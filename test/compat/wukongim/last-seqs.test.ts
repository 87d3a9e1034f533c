// Tests of the parser of last_msg_seqs, a list whose separators may also occur in ids.

import type { ChannelRef } from "../../../src/broker/model.ts";
import { readLastSeqs } from "../../../src/compat/wukongim/last-seqs.ts";
import { leastBelow } from "../../support/least.ts";
import { t } from "../../support/suite.ts";

const group = (id: string): ChannelRef => ({ id, type: 2 });
const person = (id: string): ChannelRef => ({ id, type: 1 });

t.test(
  "last_msg_seqs contains the seq of each channel, and a channel without an entry has seq 0",
  async (t) => {
    const channels = [group("a"), person("a"), person("b")];
    const seqOf = await readLastSeqs("a:2:5|a:1:7|gone:2:9", channels);
    t.same(channels.map(seqOf), [5, 7, 0]);
    t.equal((await readLastSeqs("", channels))(group("a")), 0);
  },
);

t.test("ids in last_msg_seqs may contain the separators | and :", async (t) => {
  const channels = [group("a|b"), person("x:1:5"), group("|"), group("c:2")];
  const seqOf = await readLastSeqs("a|b:2:3|x:1:5:1:8||:2:4|c:2:2:6", channels);
  t.same(channels.map(seqOf), [3, 8, 4, 6]);
});

t.test(
  "an ambiguous entry of last_msg_seqs belongs to the channel with the longest id",
  async (t) => {
    const text = "a:2:1|b:2:7";
    const groups = [group("a"), group("b")];
    t.same(groups.map(await readLastSeqs(text, groups)), [1, 7]);
    const joined = group("a:2:1|b");
    t.equal((await readLastSeqs(text, [group("b"), joined]))(joined), 7);
  },
);

t.test(
  "an invalid entry of last_msg_seqs is skipped, and the other entries are read",
  async (t) => {
    const channels = [group("a"), group("b")];
    for (const text of ["a:2|b:2:7", "a:2:x|b:2:7", "::|b:2:7|", "a:2:|b:2:7|:2:1"])
      t.same(channels.map(await readLastSeqs(text, channels)), [0, 7], text);
  },
);

t.test("a hostile last_msg_seqs of about 130 kB takes under 0.8 s of processor time", async (t) => {
  const ends = "|:1:1";
  const texts = [
    `${"|".repeat(131_000)}:1:1`,
    ends.repeat(26_000),
    `${"a:1:1|".repeat(21_000)}a:1:1`,
    `${"|".repeat(250)}:1:1`.repeat(512),
  ];
  const lengths = Array.from({ length: 128 }, (_, at) => at + 1);
  const plainChannels = lengths.map((length) => person("x".repeat(length)));
  const ambiguousChannels = lengths.map((length) => person(ends.repeat(26).slice(0, length)));
  for (const text of texts)
    for (const channels of [[], plainChannels, ambiguousChannels]) {
      // Processor time depends less on the other load on the machine than elapsed time.
      const leastUs = await leastBelow(800_000, 3, async () => {
        const before = process.cpuUsage();
        await readLastSeqs(text, channels);
        return process.cpuUsage(before).user;
      });
      t.ok(leastUs < 800_000, text.slice(0, 20));
    }
});

t.test("all 3,000 entries of a long last_msg_seqs value are read", async (t) => {
  const ids = Array.from({ length: 3000 }, (_, at) => `u:${at}|${at % 7}`);
  const text = ids.map((id, at) => `${id}:1:${at + 1}`).join("|");
  const seqOf = await readLastSeqs(text, ids.map(person));
  t.same(
    ids.filter((id, at) => seqOf(person(id)) !== at + 1),
    [],
  );
  t.equal(seqOf(group("u:0|0")), 0);
});
