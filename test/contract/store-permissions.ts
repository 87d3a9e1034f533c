// The Store contract: the step that appends judges the sender, by the one rule there is, and leaves
// nothing of who may not send.

import type { Test } from "tap";
import {
  type ChannelFlags,
  type ChannelInfo,
  type ChannelRef,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import {
  refuseGroupSend,
  refusePersonSend,
} from "../../src/broker/permissions.ts";
import {
  ALL,
  type Bench,
  draftOf,
  type Given,
  group,
  PERMANENT,
  person,
  retryOf,
  seqsOf,
  TEMPORARY,
} from "./store-bench.ts";

const FLAGS = [true, false];

function combinations(
  ...names: readonly ("ban" | "disband" | "sendBan" | "allowStranger")[]
): readonly ChannelFlags[] {
  return names.reduce<readonly ChannelFlags[]>(
    (all, name) =>
      all.flatMap((one) => FLAGS.map((value) => ({ ...one, [name]: value }))),
    [{}],
  );
}

const send = (bench: Bench, channel: ChannelRef, fromUid: string) =>
  bench.store.append(draftOf({ channel, fromUid, permission: "check" }));

/** Makes the channel; flags come last, since nobody is added to a disbanded one. */
async function make(
  { store }: Bench,
  info: ChannelInfo,
  {
    flags,
    members = [],
    temporary = [],
  }: {
    readonly flags: ChannelFlags;
    readonly members?: readonly string[];
    readonly temporary?: readonly string[];
  },
): Promise<void> {
  await store.createChannel(info, members);
  if (temporary.length > 0)
    await store.addSubscribers(info, temporary, TEMPORARY);
  await store.updateChannel(info, flags);
}

export async function permissions(t: Test, given: Given): Promise<void> {
  t.test("groups: every case of facts is judged by the rule", async (t) => {
    const bench = await given(t);
    const all = combinations("ban", "disband", "sendBan");
    const cases = all.flatMap((flags, at) => [
      { id: `g${at}none`, flags },
      { id: `g${at}member`, flags, members: ["alice"] },
      { id: `g${at}guest`, flags, temporary: ["alice"] },
    ]);
    await Promise.all(cases.map((one) => make(bench, group(one.id), one)));
    for (const id of [...cases.map((one) => one.id), "unknown"])
      for (const uid of ["alice", SYSTEM_UID]) {
        const { refused } = await send(bench, group(id), uid);
        const facts = await bench.store.groupFacts(id, uid);
        t.equal(refused, refuseGroupSend(facts, uid), `${id} ${uid}`);
      }
  });

  t.test("persons: every case of facts is judged by the rule", async (t) => {
    const bench = await given(t);
    const senders = ["plain", SYSTEM_UID];
    for (const [at, flags] of combinations("disband", "sendBan").entries()) {
      senders.push(`s${at}`);
      await make(bench, person(`s${at}`), { flags });
    }
    const all = combinations("ban", "disband", "allowStranger");
    const cases = all.flatMap((flags, at) => [
      { id: `r${at}none`, flags },
      { id: `r${at}other`, flags, members: ["other"] },
      { id: `r${at}known`, flags, members: ["other", ...senders] },
      { id: `r${at}guest`, flags, temporary: ["plain"] },
    ]);
    await Promise.all(cases.map((one) => make(bench, person(one.id), one)));
    const ids = [...cases.map((one) => one.id), ...senders];
    for (const id of ids)
      for (const uid of new Set([...senders, id])) {
        const { refused } = await send(bench, person(id), uid);
        const facts = await bench.store.personFacts(uid, id);
        t.equal(refused, refusePersonSend(facts, uid, id), `${uid} to ${id}`);
      }
  });

  t.test("a refused message leaves nothing and harms no other", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["alice", "carol"]);
    const from = (fromUid: string) =>
      store.append(draftOf({ fromUid, permission: "check" }));
    const answers = await Promise.all(
      ["alice", "mallory", "carol", "mallory", "alice"].map(from),
    );
    t.same(
      answers.map((a) => [a.messageSeq, a.refused]),
      [
        [1, undefined],
        [0, "not_subscriber"],
        [2, undefined],
        [0, "not_subscriber"],
        [3, undefined],
      ],
    );
    t.same(answers[1], {
      ...{ messageId: 0, messageSeq: 0, duplicate: false },
      refused: "not_subscriber",
    });
    const { messages } = await store.readMessages("2:g", ALL);
    t.same(
      messages.map((m) => m.fromUid),
      ["alice", "carol", "alice"],
    );
    await bench.heard(3);
    t.same(seqsOf(bench.messages), [1, 2, 3]);
  });

  t.test("a change of the rules counts from its answer on", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), ["alice"]);
    const refusal = async () =>
      (await store.append(draftOf({ permission: "check" }))).refused;
    t.equal(await refusal(), undefined);
    await store.updateChannel(group("g"), { ban: true });
    t.equal(await refusal(), "channel_banned");
    await store.updateChannel(group("g"), { ban: false });
    t.equal(await refusal(), undefined);
    await store.removeSubscribers(group("g"), ["alice"], "permanent");
    t.equal(await refusal(), "not_subscriber");
    await store.addSubscribers(group("g"), ["alice"], PERMANENT);
    t.equal(await refusal(), undefined);
    await store.updateChannel(group("g"), { disband: true });
    t.equal(await refusal(), "channel_disbanded");
  });

  t.test(
    "a retry of what was accepted is answered, whatever the rules are",
    async (t) => {
      const bench = await given(t);
      const { store } = bench;
      await store.createChannel(group("g"), ["alice"]);
      const first = await store.append({
        ...{ ...retryOf("n"), permission: "check" },
      });
      await store.updateChannel(group("g"), { ban: true });
      const again = { ...first, duplicate: true };
      for (const permission of ["check", "granted", "send_banned"] as const)
        t.same(await store.append({ ...retryOf("n"), permission }), again);
      t.match(await store.append({ ...retryOf("m"), permission: "check" }), {
        refused: "channel_banned",
      });
      t.match(
        await store.append({ ...retryOf("m"), permission: "send_banned" }),
        { refused: "send_banned" },
        "what the caller decided",
      );
      await store.updateChannel(group("g"), { ban: false });
      t.match(
        await store.append({ ...retryOf("m"), permission: "check" }),
        { messageSeq: 2, duplicate: false },
        "a refusal is not remembered",
      );
      await bench.heard(2);
      t.same(seqsOf(bench.messages), [1, 2]);
    },
  );
}
