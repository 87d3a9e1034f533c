// Store contract: the step that stores a message checks the sender by the rules of
// `permissions.ts`. A refused message is neither stored nor published.

import type { Test } from "tap";
import {
  type ChannelFlags,
  type ChannelInfo,
  type ChannelRef,
  STREAM_CONTENT,
  STREAM_START,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import { refuseGroupSend, refusePersonSend } from "../../src/broker/permissions.ts";
import type { AppendResult, ChannelList, ListChange, SendCheck } from "../../src/broker/ports.ts";
import {
  ALL,
  draftOf,
  type FixtureFactory,
  group,
  PERMANENT,
  person,
  retryOf,
  type StoreFixture,
  seqsOf,
  TEMPORARY,
} from "./store-fixture.ts";
import { eventOf } from "./store-stream-fixture.ts";

const FLAGS = [true, false];

/** Returns all combinations of the flags' values. */
function combinations(
  ...names: readonly ("ban" | "disband" | "sendBan" | "allowStranger")[]
): readonly ChannelFlags[] {
  return names.reduce<readonly ChannelFlags[]>(
    (combined, name) =>
      combined.flatMap((flagSet) => FLAGS.map((value) => ({ ...flagSet, [name]: value }))),
    [{}],
  );
}

const send = (
  fixture: StoreFixture,
  channel: ChannelRef,
  fromUid: string,
  permission: SendCheck = "check",
) => fixture.store.append(draftOf({ channel, fromUid, permission }));

/**
 * Returns why an event of the sender is refused, or `undefined` if the sender may send. The stream
 * of the event does not exist.
 */
async function eventRefusal(
  { store }: StoreFixture,
  channel: ChannelRef,
  fromUid: string,
  permission: SendCheck,
) {
  const result = await store.streamEvent(
    eventOf(STREAM_CONTENT, "x", { channel, fromUid, permission }),
  );
  return result.verdict === "missing" ? undefined : result.refused;
}

/**
 * Sends a message and an event with each of the checks, all at once, and compares the refusals with
 * `expectedOf`.
 */
async function checkRefusals(
  t: Test,
  fixture: StoreFixture,
  channel: ChannelRef,
  fromUid: string,
  {
    checks,
    expectedOf,
  }: {
    readonly checks: readonly SendCheck[];
    readonly expectedOf: (check: SendCheck) => AppendResult["refused"];
  },
): Promise<void> {
  const name = `${fromUid} to ${channel.id}`;
  await Promise.all(
    checks.map(async (check) => {
      const [{ refused }, eventRefused] = await Promise.all([
        send(fixture, channel, fromUid, check),
        eventRefusal(fixture, channel, fromUid, check),
      ]);
      t.equal(refused, expectedOf(check), `${name}, ${check}`);
      t.equal(eventRefused, expectedOf(check), `an event of ${name}, ${check}`);
    }),
  );
}

const addition = (...uids: string[]) => ({ kind: "add", uids }) as const;

/**
 * Creates the channel with its members and lists. The flags are set last, because members cannot be
 * added to a disbanded channel.
 */
async function createChannel(
  { store }: StoreFixture,
  info: ChannelInfo,
  {
    flags,
    members = [],
    temporary = [],
    denied = [],
    allowed = [],
  }: {
    readonly flags: ChannelFlags;
    readonly members?: readonly string[];
    readonly temporary?: readonly string[];
    readonly denied?: string[];
    readonly allowed?: string[];
  },
): Promise<void> {
  await store.createChannel(info, members);
  if (temporary.length > 0) await store.addSubscribers(info, temporary, TEMPORARY);
  if (denied.length > 0) await store.changeList(info, "denylist", addition(...denied));
  if (allowed.length > 0) await store.changeList(info, "allowlist", addition(...allowed));
  await store.updateChannel(info, flags);
}

/** Checks that a caller may demand for a personal message. */
const CHECKS: readonly SendCheck[] = ["check", "check_friends", "check_exempt", "check_open"];

export async function permissions(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test(
    "a group message is refused if and only if `refuseGroupSend` refuses it, whatever the flags, members and lists of the group",
    async (t) => {
      const fixture = await createFixture(t);
      const combinedFlags = combinations("ban", "disband", "sendBan");
      const cases = combinedFlags.flatMap((flags, at) => [
        { id: `g${at}none`, flags },
        { id: `g${at}member`, flags, members: ["alice"] },
        { id: `g${at}guest`, flags, temporary: ["alice"] },
        ...[["alice"], []].flatMap((members) =>
          [
            { denied: ["alice", "other"] },
            { denied: ["other"], allowed: ["other"] },
            { allowed: ["alice"] },
            { denied: ["alice"], allowed: ["alice"] },
          ].map((lists, nth) => ({
            ...{ id: `g${at}lists${nth}${members}`, flags, members, ...lists },
          })),
        ),
      ]);
      await Promise.all(
        cases.map((groupCase) => createChannel(fixture, group(groupCase.id), groupCase)),
      );
      for (const id of [...cases.map(({ id }) => id), "unknown"])
        await Promise.all(
          ["alice", SYSTEM_UID].map(async (uid) => {
            const facts = await fixture.store.groupFacts(id, uid);
            await checkRefusals(t, fixture, group(id), uid, {
              checks: ["check", "check_exempt"],
              expectedOf: (check) => refuseGroupSend(facts, uid, check),
            });
          }),
        );
    },
  );

  t.test(
    "a personal message is refused if and only if `refusePersonSend` refuses it, whatever the flags, members and lists of both users",
    async (t) => {
      const fixture = await createFixture(t);
      const senders = ["plain", SYSTEM_UID];
      for (const [at, flags] of combinations("disband", "sendBan").entries()) {
        senders.push(`s${at}`);
        await createChannel(fixture, person(`s${at}`), { flags });
      }
      const combinedFlags = combinations("ban", "disband", "allowStranger");
      const cases = combinedFlags.flatMap((flags, at) => [
        { id: `r${at}none`, flags },
        { id: `r${at}other`, flags, members: ["other"] },
        { id: `r${at}known`, flags, members: ["other", ...senders] },
        { id: `r${at}guest`, flags, temporary: ["plain"] },
      ]);
      await Promise.all(
        cases.map((receiver) => createChannel(fixture, person(receiver.id), receiver)),
      );
      const lists = {
        denies: { denied: ["plain", SYSTEM_UID], allowed: ["s0"] },
        allows: { allowed: ["plain", "s1"] },
        both: { denied: ["plain"], allowed: ["plain"] },
        [SYSTEM_UID]: { denied: ["plain"], allowed: ["other"] },
      };
      for (const [id, receiverLists] of Object.entries(lists)) {
        const info = { id, type: 1 } as const; // the receiver has no record
        const { denied = [], allowed } = { denied: [], ...receiverLists };
        await fixture.store.changeList(info, "denylist", addition(...denied));
        await fixture.store.changeList(info, "allowlist", addition(...allowed));
      }
      await createChannel(fixture, person("lists"), {
        ...{ flags: {}, members: ["s0"], denied: ["s1"], allowed: ["plain"] },
      });
      const ids = [...cases.map(({ id }) => id), ...senders, ...Object.keys(lists), "lists"];
      for (const id of ids)
        await Promise.all(
          [...new Set([...senders, id])].map(async (uid) => {
            const facts = await fixture.store.personFacts(uid, id);
            await checkRefusals(t, fixture, person(id), uid, {
              checks: CHECKS,
              expectedOf: (check) => refusePersonSend(facts, uid, id, check),
            });
          }),
        );
    },
  );

  t.test(
    "the denylist and the allowlist of a channel can be read and changed before and after a restart",
    async (t) => {
      const fixture = await createFixture(t);
      const g = { id: "g", type: 2 } as const;
      const owner = { id: "g", type: 1 } as const; // this user has no record, but has lists of its own
      const change = (
        channel: ChannelRef,
        list: ChannelList,
        kind: ListChange["kind"],
        ...uids: string[]
      ) => fixture.store.changeList(channel, list, { kind, uids });
      const read = async (channel: ChannelRef) =>
        Promise.all(
          (["denylist", "allowlist"] as const).map(async (list) =>
            [...(await fixture.store.listed(channel, list))].sort().join(),
          ),
        );
      t.equal(await change(g, "denylist", "add", "a"), false, "the group does not exist");
      await fixture.store.createChannel(group("g"), ["a", "m"]);
      t.same(await read(g), ["", ""], "a refused change has no effect");
      t.equal(await change(g, "denylist", "add", "a", "b", "a"), true);
      t.equal(await change(g, "allowlist", "add", "b", "c"), true);
      t.equal(await change(owner, "allowlist", "replace", "x", "日本"), true);
      t.same(await read(g), ["a,b", "b,c"]);
      const sizes = { members: 2, denylist: 2, allowlist: 2 };
      t.same(await fixture.store.channelSizes(g), sizes);
      const ownerSizes = { members: 0, denylist: 0, allowlist: 2 };
      t.same(await fixture.store.channelSizes(owner), ownerSizes);
      await fixture.store.addSubscribers(g, ["m", "n"], TEMPORARY);
      t.match(
        await fixture.store.channelSizes(g),
        { members: 3 },
        "members of both kinds are counted",
      );
      await fixture.store.removeSubscribers(g, ["m", "n"], "temporary");
      await change(g, "denylist", "remove", "b", "nobody");
      await change(g, "allowlist", "replace", "c", "d");
      await fixture.reopen();
      t.same(await read(g), ["a", "c,d"]);
      t.same(await read(owner), ["", "x,日本"]);
      t.same([...(await fixture.store.members(g))].sort(), ["a", "m"], "the members are unchanged");
      t.equal((await fixture.store.channel(owner)) === undefined, true);
      t.equal(
        await fixture.store.createChannel(person("g"), []),
        true,
        "the lists do not create the channel",
      );
      t.match(await fixture.store.personFacts("x", "g"), { isAllowed: true });
      await change(g, "denylist", "replace");
      await change(g, "allowlist", "replace");
      t.same(await read(g), ["", ""]);
      t.equal(
        (await send(fixture, g, "m")).refused,
        undefined,
        "empty lists do not restrict senders",
      );
      await fixture.store.updateChannel(g, { disband: true });
      t.equal(
        await change(g, "denylist", "add", "a"),
        false,
        "the lists of a disbanded channel cannot be changed",
      );
    },
  );

  t.test("concurrent changes to a denylist are all applied", async (t) => {
    const { store } = await createFixture(t);
    const channel = { id: "owner", type: 1 } as const;
    const names = Array.from({ length: 60 }, (_, i) => `u${i}`);
    await Promise.all(names.map((uid) => store.changeList(channel, "denylist", addition(uid))));
    t.same([...(await store.listed(channel, "denylist"))].sort(), names.sort());
    const many = Array.from({ length: 2500 }, (_, i) => `m${i}`).sort();
    const replacement = { kind: "replace", uids: many } as const;
    await store.changeList(channel, "denylist", replacement);
    t.same([...(await store.listed(channel, "denylist"))].sort(), many);
    t.match(await store.personFacts("m7", "owner"), { isDenied: true });
    t.match(await store.personFacts("u7", "owner"), { isDenied: false });
  });

  t.test(
    "a change to the denylist or the allowlist applies to every message sent after the call has returned",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.createChannel(group("g"), ["alice", "bob"]);
      const refusal = async () => (await send(fixture, group("g"), "alice")).refused;
      const change = (list: ChannelList, kind: ListChange["kind"], uid: string) =>
        store.changeList(group("g"), list, { kind, uids: [uid] });
      for (let i = 0; i < 20; i++) {
        await change("denylist", "add", "alice");
        t.equal(await refusal(), "denylisted");
        await change("denylist", "remove", "alice");
        t.equal(await refusal(), undefined);
        await change("allowlist", "add", "bob");
        t.equal(await refusal(), "not_allowlisted");
        await change("allowlist", "remove", "bob");
        t.equal(await refusal(), undefined);
      }
    },
  );

  t.test("a refused message is not stored and does not affect other messages", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createChannel(group("g"), ["alice", "carol"]);
    const from = (fromUid: string) => store.append(draftOf({ fromUid, permission: "check" }));
    const results = await Promise.all(["alice", "mallory", "carol", "mallory", "alice"].map(from));
    t.same(
      results.map((result) => [result.messageSeq, result.refused]),
      [
        [1, undefined],
        [0, "not_subscriber"],
        [2, undefined],
        [0, "not_subscriber"],
        [3, undefined],
      ],
    );
    t.same(results[1], {
      ...{ messageId: 0, messageSeq: 0, duplicate: false },
      refused: "not_subscriber",
    });
    const { messages } = await store.readMessages("2:g", ALL);
    t.same(
      messages.map((message) => message.fromUid),
      ["alice", "carol", "alice"],
    );
    await fixture.untilEvents(3);
    t.same(seqsOf(fixture.messages), [1, 2, 3]);
  });

  t.test("a refused event changes nothing and does not affect other events", async (t) => {
    const { store } = await createFixture(t);
    await store.createChannel(group("g"), ["alice", "carol"]);
    const post = (fromUid: string, type: string, clientMsgNo: string, data = "") =>
      store.streamEvent(eventOf(type, data, { fromUid, clientMsgNo, permission: "check" }));
    const results = await Promise.all([
      post("alice", STREAM_START, "s"),
      post("mallory", STREAM_CONTENT, "s", "evil"),
      post("alice", STREAM_CONTENT, "s", "good"),
      post("mallory", STREAM_START, "s2"),
      post("carol", STREAM_CONTENT, "s", "!"),
    ]);
    t.same(
      results.map(({ verdict, refused }) => [verdict, refused]),
      [
        ["done", undefined],
        ["refused", "not_subscriber"],
        ["done", undefined],
        ["refused", "not_subscriber"],
        ["done", undefined],
      ],
    );
    t.equal((await store.stream("2:g", "s"))?.text, "good!");
    t.equal(await store.stream("2:g", "s2"), undefined);
    t.equal(await store.headSeq("2:g"), 1);
  });

  t.test(
    "a change to flags or members applies to every message sent after the call has returned",
    async (t) => {
      const { store } = await createFixture(t);
      await store.createChannel(group("g"), ["alice"]);
      const refusal = async () => (await store.append(draftOf({ permission: "check" }))).refused;
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
    },
  );

  t.test(
    "a retry of an accepted message returns the result of that message, even if the sender may no longer send",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.createChannel(group("g"), ["alice"]);
      const first = await store.append({
        ...{ ...retryOf("n"), permission: "check" },
      });
      await store.updateChannel(group("g"), { ban: true });
      const retryResult = { ...first, duplicate: true };
      for (const permission of ["check", "granted", "send_banned"] as const)
        t.same(await store.append({ ...retryOf("n"), permission }), retryResult);
      t.match(await store.append({ ...retryOf("m"), permission: "check" }), {
        refused: "channel_banned",
      });
      t.match(
        await store.append({ ...retryOf("m"), permission: "send_banned" }),
        { refused: "send_banned" },
        "the refusal of the caller is returned",
      );
      await store.updateChannel(group("g"), { ban: false });
      t.match(
        await store.append({ ...retryOf("m"), permission: "check" }),
        { messageSeq: 2, duplicate: false },
        "a refused message can be sent later",
      );
      await fixture.untilEvents(2);
      t.same(seqsOf(fixture.messages), [1, 2]);
    },
  );
}
