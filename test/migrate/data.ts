// Data for tests of the migration: a few values of every kind that a store can hold, and a function
// that reads all of them through the Store port.

import { createHash } from "node:crypto";
import { EVENTS_START } from "../../src/broker/event-ports.ts";
import { bucketOf, LOG_START } from "../../src/broker/log-frame.ts";
import {
  type ChannelRef,
  channelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../../src/broker/model.ts";
import {
  type CommandDraft,
  MAX_STREAM_ENDS,
  type Store,
  type StreamAppendDraft,
  type StreamCreationDraft,
  type StreamDraft,
} from "../../src/broker/ports.ts";
import * as log from "../contract/log-fixture.ts";
import {
  ALL,
  draftOf,
  earlierResult,
  group,
  PERMANENT,
  person,
  TEMPORARY,
} from "../contract/store-fixture.ts";
import { conversationsOf } from "../support/conversation-list.ts";

export const UIDS = ["alice", "bob", "carol", "日本:}語", "dave smith"];
const [ALICE = "", BOB = "", CAROL = "", ODD = "", DAVE = ""] = UIDS;
export const GROUPS = ["g", "große Gruppe:1", "large", "gone", "quiet"];
const SENT = new TextEncoder().encode('{"type":1,"content":"é"}');

export const hashOf = (token: string) =>
  new Uint8Array(createHash("sha256").update(token).digest());

const inGroup = (id: string): ChannelRef => ({ id, type: 2 });
const to = (uid: string): ChannelRef => ({ id: uid, type: 1 });

/** Returns a message whose sender chose its clientMsgNo. */
export const numbered = (fromUid: string, channel: ChannelRef, clientMsgNo: string) =>
  draftOf({
    ...{ fromUid, channel, clientMsgNo, key: channelKey(channel, fromUid) },
    ...{ payload: SENT },
  });

/** Returns an event of alice's stream `open` in the group g, with the given changes. */
export function streamDraft(
  changes: Partial<StreamDraft> & { readonly type: string },
): StreamDraft {
  const channel = changes.channel ?? inGroup("g");
  return {
    ...{ key: channelKey(channel, ALICE), channel, fromUid: ALICE },
    ...{ clientMsgNo: "open", eventId: undefined, data: "" },
    ...{ timestampMs: undefined, force: false },
    ...changes,
  };
}

/** Returns a command of alice in the group g, with the given changes. */
export function commandDraft(changes: Partial<CommandDraft> = {}): CommandDraft {
  return {
    ...{ key: "2:g", channel: inGroup("g"), fromUid: ALICE },
    ...{ clientMsgNo: "cmd", expireS: 0, tagKey: undefined },
    header: { noPersist: false, redDot: false },
    ...{ payload: SENT, recipients: [BOB, ODD], pushOnlyRecipients: [] },
    ...{ origin: undefined, ...changes },
  };
}

/** Maximum number of commands of one user in another user's inbox, in the migrated stores. */
const MAX_SHARE = 100;

/** Bucket of the group g, and a claim of the cursor `push` before the bucket has events. */
const PUSH_CURSOR = [bucketOf("2:g"), { name: "push", token: 1 }] as const;

/** Fills an empty store. `pass` moves the clock forward. */
export async function fill(store: Store, pass: (ms: number) => void): Promise<void> {
  await store.switchFeed(true);
  await store.claimPushCursor(...PUSH_CURSOR);
  await people(store);
  await sessions(store);
  await channels(store);
  await messages(store, pass);
  await streams(store);
  await commands(store);
  await positions(store, pass);
  await logs(store);
}

/** Logs zoe in, so that the event feed contains the events of her login and of her session. */
async function sessions(store: Store): Promise<void> {
  const names = { sessionId: "s1", nodeId: "n1", uid: "zoe", deviceId: "", tokenTag: "" };
  await store.setDemand({ feed: true, session: true, command: false });
  await store.login({ ...names, flag: 1, level: 0 }, "n1:alone");
  await store.setDemand({ feed: true, session: false, command: false });
}

async function people(store: Store): Promise<void> {
  for (const uid of UIDS)
    for (const flag of [0, 2] as const)
      await store.putDevice({
        ...{ uid, flag, level: flag === 0 ? 1 : 0 },
        tokenHash: hashOf(`${uid}${flag}`),
      });
  await store.putDevice({
    ...{ uid: DAVE, flag: 1, level: 0, tokenHash: new Uint8Array() },
  });
  await store.putBan(DAVE, true);
  await store.putBan(ODD, true);
  await store.putPasswordOnce("admin", { passwordHash: "scrypt$1$2$3$a$b" });
  await store.changeSystemUids("add", [DAVE, ODD]);
  for (const number of [1, 2])
    await store.putSigningKeyOnce({ number, secret: hashOf(`key ${number}`), createdAtMs: number });
  for (const id of ["wh_1", "wh_2"]) await store.putWebhook(id, `{"id":"${id}"}`, 0, 10);
  await store.putWebhook("wh_2", '{"changed":1}', 1, 10);
  const [lease] = await store.acquireWebhookLeases(["wh_1"], "me", 60_000);
  await store.saveWebhookTexts(
    { webhookId: "wh_1", token: lease?.token ?? 0 },
    {
      state: new Map([
        ["live/0", "first"],
        ["live/63", "last"],
      ]),
      parked: new Map([["0-1-1", '{"event":{}}']]),
    },
  );
  const until = Date.UTC(2040, 0, 2);
  await store.putAccessToken(hashOf("access"), "admin", until);
}

async function channels(store: Store): Promise<void> {
  for (const id of GROUPS)
    await store.createChannel(
      { ...group(id), large: id === "large", ban: id === "quiet" },
      id === "gone" ? [ALICE] : [ALICE, BOB, ODD],
    );
  await store.addSubscribers(inGroup("g"), [DAVE, BOB], TEMPORARY);
  await store.updateChannel(inGroup("gone"), { disband: true });
  await store.createChannel({ ...person(BOB), allowStranger: true, clientEvents: false }, [ALICE]);
  await store.createChannel({ ...person(ODD), sendBan: true }, []);
  const list = (uids: readonly string[]) => ({ kind: "add", uids }) as const;
  await store.changeList(inGroup("g"), "denylist", list([DAVE, ODD]));
  await store.changeList(inGroup("quiet"), "allowlist", list([ALICE, ODD]));
  await store.changeList(to(CAROL), "denylist", list([BOB, ODD])); // without a channel record
  await store.changeList(to(CAROL), "allowlist", list([ODD]));
}

async function messages(store: Store, pass: (ms: number) => void): Promise<void> {
  for (let i = 0; i < 130; i++) {
    const fromUid = UIDS[i % 3] ?? "";
    await store.append(numbered(fromUid, inGroup("g"), `n${i}`));
    if (i % 10 === 0) pass(7);
  }
  await store.addSubscribers(inGroup("g"), [CAROL], PERMANENT); // carol joins after the messages
  await store.append(draftOf({ fromUid: BOB, header: { noPersist: false, redDot: false } }));
  await store.append(draftOf({ expireS: 5, fromUid: BOB }));
  await store.append(
    draftOf({
      expireS: 50_000,
      fromUid: BOB,
      tagKey: "tag",
      streamNo: "s",
      passthrough: { setting: 0x80, topic: "" },
    }),
  );
  await store.append({
    ...numbered(BOB, inGroup("g"), "unkept"),
    header: { noPersist: true, redDot: true },
  });
  for (const [from, peer] of [
    [ALICE, BOB],
    [BOB, ALICE],
    [ODD, ALICE],
    [DAVE, DAVE],
  ] as const)
    await store.append(numbered(from, to(peer), `to ${peer}`));
  await store.append(numbered(ALICE, inGroup("große Gruppe:1"), "größe"));
  await store.append(numbered(ALICE, inGroup("large"), "l"));
}

/**
 * Seconds after which the message of the stream `stopped` expires. This time is longer than the
 * dedupe window.
 */
export const EXPIRING_STREAM_S = 2 * 86_400;

async function streams(store: Store): Promise<void> {
  const append = async (no: string, data: string, changes = {}) => {
    const event = { clientMsgNo: no, ...changes };
    await store.streamEvent(streamDraft({ ...event, type: STREAM_CONTENT, data }));
  };
  const start = (no: string, changes = {}) =>
    store.streamEvent(
      streamDraft({
        ...{ clientMsgNo: no, type: STREAM_START, data: `{"of":"${no}"}` },
        ...{ force: true, ...changes },
      }),
    );
  await start("closed", { payload: SENT, eventId: "start" });
  await append("closed", "wörds ", { eventId: "e1", timestampMs: 1234 });
  await store.streamEvent(
    streamDraft({
      ...{ clientMsgNo: "closed", type: "___ToolCallStart", data: "tool" },
      eventId: "tool 1",
    }),
  );
  await append("closed", "more 😀");
  await store.streamEvent(streamDraft({ clientMsgNo: "closed", type: "état", data: "done" }));
  await store.streamEvent(streamDraft({ clientMsgNo: "closed", type: STREAM_END, data: "end" }));
  await start("stopped", { expireS: EXPIRING_STREAM_S });
  await append("stopped", "unwanted");
  await store.cancelStream("2:g", "stopped");
  await start("cancelled");
  await store.streamEvent(
    streamDraft({ clientMsgNo: "cancelled", type: STREAM_END, data: "why", isCancel: true }),
  );
  await start("n".repeat(128));
  await start("replaced");
  await start("open");
  await append("open", "so far", { eventId: "o1" });
  await append("open", "", { eventId: "shared" });
  await append("open", "?", { eventId: "shared" });
  await store.streamEvent(streamDraft({ type: "___ToolCallArgs", data: "{}" }));
  await start("private", { channel: to(BOB), key: channelKey(to(BOB), ALICE) });
  await store.createStream(agentCreation("agent", ['{"type":"text-delta","delta":"é"}']));
  await store.appendToStream(agentAppend("agent", ["1", "[]"], { number: 0, order: "5" }));
  await store.createStream(agentCreation("long", [`"${"x".repeat(70_000)}"`, "2"]));
  const tooLong = { type: STREAM_CONTENT, data: "y".repeat(70_000) };
  await store.appendToStream(agentAppend("long", [JSON.stringify(tooLong), "3"], { number: 0 }));
  await store.appendToStream(agentAppend("long", ["4"], { number: 1, close: "closed" }));
}

/**
 * Returns the sender and the name of a stream that is written over the Durable Streams protocol.
 */
const agent = (clientMsgNo: string) =>
  ({
    ...{ key: "2:quiet", channel: inGroup("quiet"), fromUid: BOB, clientMsgNo },
    permission: "granted",
  }) as const;

const agentCreation = (no: string, records: readonly string[]): StreamCreationDraft => ({
  ...agent(no),
  ...{ contentType: "application/json", records: records.map(log.bytesOf), isClosed: false },
});

const agentAppend = (
  no: string,
  records: readonly string[],
  { number, ...changes }: Partial<StreamAppendDraft> & { readonly number: number },
): StreamAppendDraft => ({
  ...agent(no),
  ...{ contentType: "application/json", records: records.map(log.bytesOf) },
  ...{ producer: { ...LOG_PRODUCER, number }, order: undefined, close: undefined, ...changes },
});

/** Returns the log of a stream of an agent, and the results of calls that change nothing. */
async function agentLog(store: Store, clientMsgNo: string) {
  const name = { kind: "channel", key: "2:quiet", clientMsgNo } as const;
  return {
    appends: await log.appendsOf(store, name),
    same: await store.createStream(agentCreation(clientMsgNo, [])),
    retry: await store.appendToStream(agentAppend(clientMsgNo, ["again"], { number: 0 })),
    gap: await store.appendToStream(agentAppend(clientMsgNo, ["late"], { number: 7 })),
    old: await store.appendToStream(agentAppend(clientMsgNo, ["old"], { number: 1, order: "4" })),
  };
}

async function commands(store: Store): Promise<void> {
  await store.appendCommand(commandDraft());
  await store.appendCommand(commandDraft({ clientMsgNo: "ends", expireS: 60_000 }));
  await store.appendCommand(commandDraft({ clientMsgNo: "soon", expireS: 1, recipients: [BOB] }));
  await store.appendCommand(commandDraft({ clientMsgNo: "third" }));
  for (const expireS of [0, 50, 0])
    await store.appendCommand(commandDraft({ clientMsgNo: "", recipients: ["eve"], expireS }));
  for (let i = 0; i < MAX_SHARE; i++)
    await store.appendCommand(
      commandDraft({ clientMsgNo: "", recipients: ["full"], origin: "session" }),
    );
  await store.acknowledgeCommands(BOB, [1]);
  await store.acknowledgeCommands(ODD, [1, 2, 3]);
}

async function positions(store: Store, pass: (ms: number) => void): Promise<void> {
  const change = store.changeConversation;
  await change(ALICE, inGroup("g"), { kind: "read", seq: 40 });
  await change(BOB, inGroup("g"), { kind: "delete" });
  await change(ODD, inGroup("g"), { kind: "unread", unread: 3 });
  await change(BOB, to(ALICE), { kind: "read", seq: 1 });
  pass(2000);
  await store.append(draftOf({ fromUid: BOB })); // moves the read position of bob to the end
}

const LOGS = ["open", "closed", "source", "fork", "fork/of fork", "json", "große/名", "none"];
const LOG_PRODUCER = { id: "wörker", epoch: 3, number: 0 };

async function logs(store: Store): Promise<void> {
  const name = (path: string) => log.free(path);
  await store.createLog(name("open"), log.draftOf({ ttlS: 100_000 }));
  const first = log.appendOf(["first"], { producer: LOG_PRODUCER, order: "5" });
  await store.appendLog(name("open"), first);
  await store.appendLog(name("open"), log.appendOf(["x".repeat(40_000)]));
  const records = [log.bytesOf("all")];
  await store.createLog(name("closed"), log.draftOf({ closed: "closed", records }));
  await store.createLog(name("source"), log.draftOf({ records: [log.bytesOf("abcdef")] }));
  await store.createLog(
    name("fork"),
    log.draftOf({ origin: log.forkOf("source", LOG_START, 3), ttlS: 200_000 }),
  );
  await store.appendLog(name("fork"), log.appendOf(["own"], { producer: LOG_PRODUCER }));
  await store.createLog(name("fork/of fork"), log.draftOf({ origin: log.forkOf("fork") }));
  await store.deleteLog(name("source"));
  const json = { contentType: "application/json" };
  const expiresAtMs = Date.UTC(2041, 0, 1);
  await store.createLog(name("json"), log.draftOf({ ...json, expiresAtMs }));
  await store.appendLog(name("json"), log.appendOf(["1", "{}"], { ...json, close: "interrupted" }));
  await store.createLog(name("große/名"), log.draftOf());
}

async function storedLog(store: Store, path: string) {
  const name = log.free(path);
  const head = await store.logHead(name);
  const origin = log.forkOf("source", LOG_START, 3);
  return {
    ...{ path, head },
    appends: typeof head === "string" ? [] : await log.appendsOf(store, name),
    // Calls that change nothing.
    retry:
      ["open", "fork"].includes(path) &&
      (await store.appendLog(name, log.appendOf(["again"], { producer: LOG_PRODUCER }))),
    gap: await store.appendLog(
      name,
      log.appendOf(["late"], { producer: { ...LOG_PRODUCER, number: 2 } }),
    ),
    old: path === "open" && (await store.appendLog(name, log.appendOf(["old"], { order: "4" }))),
    same: path === "fork" && (await store.createLog(name, log.draftOf({ origin, ttlS: 200_000 }))),
  };
}

/** Reads all the data from a store, in an order that does not depend on the store. */
export async function picture(store: Store): Promise<unknown> {
  return {
    people: await Promise.all(UIDS.map((uid) => personPicture(store, uid))),
    channels: await Promise.all(
      [...GROUPS.map(inGroup), ...UIDS.map(to)].map(async (channel) => ({
        info: await store.channel(channel),
        members: [...(await store.members(channel))].sort(),
        denied: [...(await store.listed(channel, "denylist"))].sort(),
        allowed: [...(await store.listed(channel, "allowlist"))].sort(),
      })),
    ),
    logs: await Promise.all(keysOf().map((key) => logPicture(store, key))),
    storedLogs: await Promise.all(LOGS.map((path) => storedLog(store, path))),
    agentLogs: await Promise.all(["agent", "long"].map((no) => agentLog(store, no))),
    admin: await store.putPasswordOnce("admin", { passwordHash: "another" }),
    systemUids: [...(await store.systemUids())].sort(),
    signingKeys: await store.signingKeys(),
    feed: await feedPicture(store),
    pushCursor: await store.claimPushCursor(...PUSH_CURSOR),
    webhooks: await store.webhooks(),
    webhookState: [...(await store.webhookTexts("wh_1", "state"))].sort(),
    webhookParked: [...(await store.webhookTexts("wh_1", "parked"))],
    token: await store.accessTokenOwner(hashOf("access")),
  };
}

async function feedPicture(store: Store) {
  const newest = await store.newestEvents();
  const pages = newest.map((_, at) => store.readEvents(at, EVENTS_START, 1000));
  return { isOn: await store.feedSwitch(), newest, pages: await Promise.all(pages) };
}

function keysOf(): string[] {
  const pairs = UIDS.flatMap((uid) => UIDS.map((peer) => channelKey(to(peer), uid)));
  return [...GROUPS.map((id) => `2:${id}`), ...new Set(pairs)];
}

async function personPicture(store: Store, uid: string) {
  const heads = [...(await conversationsOf(store, uid))];
  const name = ({ channel }: { readonly channel: ChannelRef }) => `${channel.type}:${channel.id}`;
  heads.sort((a, b) => (name(a) < name(b) ? -1 : 1));
  const refs = heads.map(({ channel }) => channel);
  const bounds = { limit: 1000, maxBytes: 10_000_000 };
  const open = await store.personalStreamsOf(uid);
  return {
    ...{ uid, heads },
    isBanned: await store.isBanned(uid),
    devices: await Promise.all(([0, 1, 2] as const).map((flag) => store.device(uid, flag))),
    groups: [...(await store.groupsOf(uid))].sort(),
    facts: await Promise.all([
      ...GROUPS.map((id) => store.groupFacts(id, uid)),
      ...UIDS.map((from) => store.personFacts(from, uid)),
    ]),
    conversations: await store.readConversations(uid, refs, bounds),
    inbox: await store.readInbox(uid, 0, bounds),
    streams: open,
    streamEnds: await store.personalStreamEnds(uid, 0, MAX_STREAM_ENDS),
    groupStreamEnds: await store.streamEnds(keysOf(), 0, MAX_STREAM_ENDS),
  };
}

async function logPicture(store: Store, key: string) {
  const { messages } = await store.readMessages(key, ALL);
  const numbers = [
    ...messages.map(({ fromUid, clientMsgNo, payload }) => ({ fromUid, clientMsgNo, payload })),
    ...["unkept", "cmd", "ends"].flatMap((clientMsgNo) =>
      [ALICE, BOB].map((fromUid) => ({ fromUid, clientMsgNo, payload: SENT })),
    ),
  ];
  const streams = messages.flatMap(({ stream }) =>
    stream === undefined ? [] : [stream.clientMsgNo],
  );
  return {
    ...{ key, messages },
    head: await store.headSeq(key),
    active: (await store.activeStreams([key]))[0],
    earlierResult: await Promise.all(
      numbers.map((number) => earlierResult(store, { key, ...number })),
    ),
    streams: await Promise.all(
      streams.map(async (no) => ({
        snapshot: await store.stream(key, no),
        offsets: await Promise.all(
          [0, 1, 2, 3, 4, 5, 6].map((index) => store.streamTextOffset(key, no, index)),
        ),
      })),
    ),
  };
}
