// A random sequence of calls of the Store port. The same seed makes the same sequence. It uses few
// users, channels and names, so that the calls affect each other. It keeps the channels and logins
// that earlier calls have used.

import { isDeepStrictEqual } from "node:util";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  type Device,
  type DeviceFlag,
  type DeviceLevel,
  type SessionRecord,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import type {
  Claim,
  ConversationChange,
  ConversationRange,
  LoggedInSession,
  LoginTerms,
  Store,
} from "../../src/broker/ports.ts";
import { hashToken, tokenTag } from "../../src/broker/tokens.ts";
import { conversationsIn, conversationsOf, inRange } from "../support/conversation-list.ts";
import type { Random } from "../support/random.ts";
import { joinStateOf } from "./join-request.ts";
import { ALL, draftOf, group, person, type StoreFixture, seqsOf } from "./store-fixture.ts";
import { commandOf } from "./store-inbox-fixture.ts";
import { eventOf, TOOL } from "./store-stream-fixture.ts";

export const UIDS = ["a", "b", "c", "d"];
export const GROUPS = ["g0", "g1", "g2", "g3"];
const STRANGER = "z";
const CHANNELS: readonly ChannelRef[] = [
  ...GROUPS.map((id) => ({ id, type: 2 }) as const),
  ...UIDS.map((id) => ({ id, type: 1 }) as const),
];
const STREAMS = ["s0", "s1", "s2", "n0"];
const EVENT_IDS = ["e0", "e1", "e2"];
const CLIENT_MSG_NOS = ["n0", "n1", "n2", "n3", "n4"];
const TOKENS = ["", "t0", "t1"];
const FLAGS: readonly DeviceFlag[] = [0, 1];
const LEVELS: readonly DeviceLevel[] = [0, 1];
const TYPES = [STREAM_START, STREAM_CONTENT, STREAM_CONTENT, TOOL, STREAM_END];
const DAY_MS = 86_400_000;

/** The store that the calls run against, with the logins made so far. */
export interface CallContext {
  readonly fixture: StoreFixture;
  /** Successful logins, indexed by `LoginAttempt.at`. */
  readonly logins: LoggedInSession[];
}

/** One step of the sequence: a pause, then one or several calls at the same time. */
export interface Step {
  /** Description of the calls, for the report of a failure. */
  readonly text: string;
  /** Milliseconds that pass before the calls. */
  readonly passMs: number;
  /** Channels in which the calls may publish, each with a user who may send there. */
  readonly channels: readonly Sender[];
  /**
   * True if the calls replace a list of members. The event of the replacement may leave out the
   * names.
   */
  readonly isReset: boolean;
  readonly run: (context: CallContext) => Promise<unknown>;
}

/** Fields of a step. Absent fields have their default values. */
type StepFields = Pick<Step, "run"> & Partial<Step>;

/** A channel and a user who sends in it. */
interface Sender {
  readonly channel: ChannelRef;
  readonly fromUid: string;
}

/** A login that was attempted. `at` is its index in `CallContext.logins`. */
interface LoginAttempt {
  readonly at: number;
  readonly record: SessionRecord;
}

/** Calls the port and returns the values that are compared between stores. */
type PortCall = (store: Store, context: CallContext) => unknown;

const stepOf = (text: string, portCall: PortCall, over: Partial<Step> = {}): StepFields => ({
  text,
  run: async (context) => portCall(context.fixture.store, context),
  ...over,
});

const textOf = (value: unknown) =>
  JSON.stringify(value, (_, field) =>
    field instanceof Uint8Array ? Buffer.from(field).toString() : field,
  );

const sorted = (uids: readonly string[]) => uids.toSorted();
const byChannel = <T extends { readonly channel: ChannelRef }>(heads: readonly T[]) =>
  heads.toSorted((a, b) =>
    `${a.channel.type}${a.channel.id}` < `${b.channel.type}${b.channel.id}` ? -1 : 1,
  );

export class RandomCalls {
  readonly #random: Random;
  readonly #choices: readonly (() => StepFields)[];
  /** All login attempts so far. */
  readonly #attempts: LoginAttempt[] = [];
  /** Login attempts whose session has not been removed since. */
  #sessions: readonly LoginAttempt[] = [];
  #loginCount = 0;
  /** Channels that earlier steps used, each with a user who sends there. */
  readonly #senders = new Map<ChannelKey, Sender>();

  constructor(random: Random) {
    this.#random = random;
    const calls: readonly (readonly [number, () => StepFields])[] = [
      [24, () => this.#append()],
      [8, () => this.#readMessages()],
      [4, () => this.#resumeSeqs()],
      [24, () => this.#streamEvents()],
      [3, () => this.#cancelStream()],
      [3, () => this.#interruptStreams()],
      [8, () => this.#readStream()],
      [10, () => this.#changeConversation()],
      [8, () => this.#readConversations()],
      [4, () => this.#createChannel()],
      [4, () => this.#updateChannel()],
      [8, () => this.#addSubscribers()],
      [6, () => this.#removeSubscribers()],
      [5, () => this.#changeList()],
      [8, () => this.#readChannel()],
      [8, () => this.#appendCommand()],
      [6, () => this.#readInbox()],
      [4, () => this.#acknowledge()],
      [6, () => this.#putDevice()],
      [14, () => this.#login()],
      [4, () => this.#removeSession()],
      [3, () => this.#endSession()],
      [6, () => this.#confirmSession()],
      [3, () => this.#accessToken()],
      [6, () => this.#passTime()],
      [3, () => this.#sweep()],
      [1, () => this.#restart()],
    ];
    this.#choices = calls.flatMap(([weight, makeStep]) => Array(weight).fill(makeStep));
  }

  next(): Step {
    const fields = this.#random.pick(this.#choices)();
    const { text = "", passMs = 1, channels = [], isReset = false } = fields;
    return { text, passMs, channels, isReset, run: fields.run };
  }

  get #uid(): string {
    return this.#random.pick(UIDS);
  }

  get #group(): string {
    return this.#random.pick(GROUPS);
  }

  get #uids(): readonly string[] {
    return UIDS.filter(() => this.#random.flip());
  }

  #sender(): Sender & { readonly key: ChannelKey } {
    const sender = { channel: this.#random.pick(CHANNELS), fromUid: this.#uid };
    const key = channelKey(sender.channel, sender.fromUid);
    this.#senders.set(key, sender);
    return { ...sender, key };
  }

  #oneIn(count: number): boolean {
    return this.#random.below(count) === 0;
  }

  #append(): StepFields {
    const random = this.#random;
    const drafts = Array.from({ length: 1 + random.below(4) }, () => {
      const sender = this.#sender();
      const isUser = !this.#oneIn(10) || sender.channel.type === 1;
      const fromUid = isUser ? sender.fromUid : random.pick([STRANGER, SYSTEM_UID]);
      return draftOf({
        ...{ channel: sender.channel, fromUid },
        clientMsgNo: random.flip() ? "" : random.pick(CLIENT_MSG_NOS),
        header: { noPersist: this.#oneIn(8), redDot: !this.#oneIn(4) },
        expireS: random.below(3) === 0 ? 1 + random.below(60) : 0,
        tagKey: random.maybe(() => "tag"),
        streamNo: this.#oneIn(8) ? "s0" : undefined,
        payload: Buffer.from("x".repeat(random.below(40))),
        origin: this.#oneIn(4) ? "session" : undefined,
        permission: random.pick([
          ...(["granted", "check", "check"] as const),
          ...(["check_friends", "check_exempt"] as const),
          ...(["check_open", "send_banned"] as const),
        ]),
      });
    });
    return stepOf(
      drafts
        .map(({ key: _, payload, ...draft }) => textOf({ ...draft, payload: payload.length }))
        .join("\n  "),
      (store) => Promise.all(drafts.map((draft) => store.append(draft))),
      { channels: drafts },
    );
  }

  #readMessages(): StepFields {
    const random = this.#random;
    const { key } = this.#sender();
    const fromSeq = random.below(30);
    const range = {
      fromSeq,
      toSeq: random.flip() ? Number.MAX_SAFE_INTEGER : fromSeq + random.below(9),
      limit: 1 + random.below(12),
      reverse: random.flip(),
      maxBytes: random.pick([1, Number.MAX_SAFE_INTEGER]),
    };
    return stepOf(`readMessages ${key} ${textOf(range)}`, async (store) => [
      await store.headSeq(key),
      await store.readMessages(key, range),
    ]);
  }

  #resumeSeqs(): StepFields {
    const { key } = this.#sender();
    const lastSeq = this.#random.below(30);
    const nth = this.#random.below(20) - 1;
    return stepOf(`resumeSeqs ${key} ${lastSeq} id of message ${nth}`, async (store) => {
      const { messages } = await store.readMessages(key, ALL);
      const lastId = messages[nth]?.messageId ?? 0;
      const positions = [{ key, lastSeq, lastId }];
      const { resumeSeqs } = await joinStateOf(store, "alice", { positions });
      const { headSeq, lastCommonSeq = 0 } = resumeSeqs[0] ?? {};
      const shared = seqsOf(messages).filter((s) => s <= lastCommonSeq);
      return [headSeq, shared]; // stores may differ in whether expired messages count as common
    });
  }

  #streamEvents(): StepFields {
    const random = this.#random;
    const { channel, fromUid } = this.#sender();
    const drafts = Array.from({ length: 1 + random.below(4) }, () =>
      eventOf(random.pick(TYPES), random.pick(["", "text", "{}", "äö"]), {
        ...{ channel, fromUid, clientMsgNo: random.pick(STREAMS) },
        eventId: this.#oneIn(3) ? random.pick(EVENT_IDS) : undefined,
        timestampMs: this.#oneIn(4) ? random.below(9999) : undefined,
        force: this.#oneIn(4),
        expireS: this.#oneIn(4) ? 1 + random.below(60) : undefined,
      }),
    );
    return stepOf(
      drafts.map(({ key: _, ...draft }) => textOf(draft)).join("\n  "),
      (store) => Promise.all(drafts.map((draft) => store.streamEvent(draft))),
      { channels: [{ channel, fromUid }] },
    );
  }

  #cancelStream(): StepFields {
    const { key, ...sender } = this.#sender();
    const name = this.#random.pick(STREAMS);
    return stepOf(`cancelStream ${key} ${name}`, (store) => store.cancelStream(key, name), {
      channels: [sender],
    });
  }

  #interruptStreams(): StepFields {
    const silentMs = this.#random.below(20_000);
    return stepOf(`interruptStreams ${silentMs}`, (store) => store.interruptStreams(silentMs), {
      channels: [...this.#senders.values()],
    });
  }

  #readStream(): StepFields {
    const { key, fromUid } = this.#sender();
    const name = this.#random.pick(STREAMS);
    const index = this.#random.below(8) - 1;
    return stepOf(`stream ${key} ${name} ${index} of ${fromUid}`, async (store) => [
      await store.stream(key, name),
      (await store.activeStreams([key]))[0],
      await store.streamTextOffset(key, name, index),
      sorted((await store.personalStreamsOf(fromUid)).map((stream) => stream.key)),
    ]);
  }

  #changeConversation(): StepFields {
    const random = this.#random;
    const { channel, fromUid } = this.#sender();
    const change = random.pick<ConversationChange>([
      { kind: "read", seq: random.below(40) },
      { kind: "unread", unread: random.below(10) },
      { kind: "delete" },
    ]);
    return stepOf(`changeConversation ${fromUid} ${textOf(channel)} ${textOf(change)}`, (store) =>
      store.changeConversation(fromUid, channel, change),
    );
  }

  #readConversations(): StepFields {
    const uid = this.#uid;
    const limit = 1 + this.#random.below(9);
    const bounds = {
      limit,
      maxBytes: this.#random.pick([1, Number.MAX_SAFE_INTEGER]),
    };
    const count = 1 + this.#random.below(4);
    const [skipped, sinceAt] = [this.#random.below(4), this.#random.below(4)];
    const page = { count, skipped, sinceAt };
    return stepOf(`conversations ${uid} ${textOf({ ...bounds, ...page })}`, async (store) => [
      await isPageRight(store, uid, page),
      byChannel(await conversationsOf(store, uid)),
      await store.readConversations(uid, CHANNELS, bounds),
      await Promise.all(CHANNELS.map((channel) => store.conversation(uid, channel))),
    ]);
  }

  /** Returns the record of a random group or user. */
  #record() {
    return this.#oneIn(4) ? person(this.#uid) : group(this.#group);
  }

  #flags() {
    const flag = () => this.#oneIn(3);
    return {
      ...{ ban: flag(), sendBan: flag(), large: flag() },
      ...{ allowStranger: flag(), clientEvents: flag(), disband: this.#oneIn(40) },
    };
  }

  #createChannel(): StepFields {
    const large = this.#oneIn(4);
    const info = { ...this.#record(), large, clientEvents: !large };
    const uids = this.#uids;
    return stepOf(`createChannel ${textOf(info)} ${uids}`, (store) =>
      store.createChannel(info, uids),
    );
  }

  #updateChannel(): StepFields {
    const info = this.#record();
    const flags = this.#flags();
    return stepOf(`updateChannel ${textOf(info)} ${textOf(flags)}`, (store) =>
      store.updateChannel(info, flags),
    );
  }

  #addSubscribers(): StepFields {
    const info = this.#record();
    const uids = this.#uids;
    const membership = this.#random.pick(["permanent", "temporary"]);
    const reset = this.#oneIn(5);
    return stepOf(
      `addSubscribers ${info.type}:${info.id} ${uids} ${membership} ${reset}`,
      (store) => store.addSubscribers(info, uids, { membership, reset }),
      { isReset: reset },
    );
  }

  #removeSubscribers(): StepFields {
    const info = this.#record();
    const uids = this.#oneIn(4) ? this.#uids : [this.#uid];
    const membership = this.#random.pick(["permanent", "temporary"]);
    return stepOf(
      `removeSubscribers ${info.type}:${info.id} ${uids} ${membership}`,
      (store) => store.removeSubscribers(info, uids, membership),
      {
        channels: info.type === 2 ? [{ channel: info, fromUid: uids[0] ?? "" }] : [],
      },
    );
  }

  #changeList(): StepFields {
    const random = this.#random;
    const info = this.#record();
    const list = random.pick(["denylist", "allowlist"] as const);
    const change = {
      kind: random.pick(["add", "remove", "remove", "replace"] as const),
      uids: this.#uids,
    };
    return stepOf(`changeList ${info.type}:${info.id} ${list} ${textOf(change)}`, (store) =>
      store.changeList(info, list, change),
    );
  }

  #readChannel(): StepFields {
    const info = this.#record();
    const [uid, other, id] = [this.#uid, this.#uid, this.#group];
    return stepOf(`read ${info.type}:${info.id} ${uid} ${other} ${id}`, async (store) => {
      const join = await joinStateOf(store, uid, { groups: GROUPS });
      const [state] = await store.userStates([uid]);
      const inbox = await store.readInbox(uid, 0, ALL);
      return [
        await store.channel(info),
        sorted(await store.members(info)),
        await store.channelSizes(info),
        sorted(await store.listed(info, "denylist")),
        sorted(await store.listed(info, "allowlist")),
        await store.membersAmong(info, [other, STRANGER, uid]),
        await store.joinSeqs(id, UIDS),
        await store.groupFacts(info.id, uid),
        await store.personFacts(uid, other),
        sorted(await store.groupsOf(uid)),
        sorted(join.groups),
        join.commands.map(({ inboxSeq }) => inboxSeq),
        (inbox.at(-1)?.inboxSeq ?? 0) <= (state?.inboxSeq ?? 0),
      ];
    });
  }

  #appendCommand(): StepFields {
    const random = this.#random;
    const { channel, fromUid } = this.#sender();
    const recipients = this.#uids;
    const pushOnlyRecipients = this.#uids.filter((uid) => !recipients.includes(uid));
    const draft = commandOf({
      ...{ channel, fromUid, recipients, pushOnlyRecipients },
      clientMsgNo: random.flip() ? "" : random.pick(CLIENT_MSG_NOS),
      expireS: random.below(3) === 0 ? 1 + random.below(60) : 0,
    });
    const { key: _, payload: _payload, ...rest } = draft;
    return stepOf(`appendCommand ${textOf(rest)}`, (store) => store.appendCommand(draft));
  }

  #readInbox(): StepFields {
    const random = this.#random;
    const [uid, after] = [this.#uid, random.below(20)];
    const page = {
      limit: 1 + random.below(9),
      maxBytes: random.pick([1, 60, Number.MAX_SAFE_INTEGER]),
    };
    return stepOf(`readInbox ${uid} ${after} ${textOf(page)}`, (store) =>
      store.readInbox(uid, after, page),
    );
  }

  #acknowledge(): StepFields {
    const uid = this.#uid;
    const seqs = this.#random.list(8, () => this.#random.below(30));
    return stepOf(`acknowledgeCommands ${uid} ${seqs}`, (store) =>
      store.acknowledgeCommands(uid, seqs),
    );
  }

  #putDevice(): StepFields {
    const random = this.#random;
    const token = random.pick(TOKENS);
    const device = {
      ...{ uid: this.#uid, flag: random.pick(FLAGS) },
      ...{ level: random.pick(LEVELS), tokenHash: hashOf(token) },
    };
    const { uid, flag } = device;
    return stepOf(`putDevice ${uid} ${flag} ${device.level} ${token}`, async (store) => [
      withoutTime(await store.putDevice(device)),
      withoutTime(await store.device(uid, flag)),
    ]);
  }

  #login(): StepFields {
    const random = this.#random;
    const uid = this.#uid;
    const token = this.#oneIn(3) ? random.pick(TOKENS) : undefined;
    const tokenHash = token === undefined ? undefined : hashOf(token);
    const at = this.#loginCount++;
    const record: SessionRecord = {
      ...{ sessionId: `session-${at}`, nodeId: "n", uid },
      ...{ flag: random.pick(FLAGS), level: random.pick(LEVELS) },
      deviceId: random.pick(["", "d0", "d1"]),
      tokenTag: tokenHash === undefined ? "" : tokenTag(tokenHash),
    };
    const attempts = this.#attempts.filter((attempt) => attempt.record.uid === uid);
    const claimed =
      attempts.length > 0 && random.flip() ? random.pick(attempts.slice(-6)) : undefined;
    const label = this.#oneIn(4) ? random.pick(["l0", "l1", "l2"]) : undefined;
    const claimText = label ?? claimed?.record.sessionId;
    this.#attempts.push({ at, record });
    this.#sessions = [...this.#sessions, { at, record }];
    return stepOf(
      `login ${textOf(record)} token ${token} claim ${claimText}`,
      async (store, { logins }) => {
        const order = claimed && logins[claimed.at]?.order;
        const claim: Claim | undefined =
          label !== undefined ? { label } : order ? { order } : undefined;
        const terms: LoginTerms = { claim, tokenHash };
        const result = await store.login(record, "n:1", terms);
        if (result.kind !== "entered") return result;
        const { groups, newestId: _, ...loggedIn } = result;
        logins[at] = loggedIn;
        const memberships = await store.groupsOf(uid);
        const sessions = await sessionsById(store, uid);
        return [loggedIn, memberships.every((id) => groups.includes(id)), sessions];
      },
    );
  }

  /**
   * Returns one of the newest 12 login attempts whose session has not been removed, or `undefined`
   * if all these sessions have been removed.
   */
  #session(): LoginAttempt | undefined {
    if (this.#sessions.length === 0) return undefined;
    return this.#random.pick(this.#sessions.slice(-12));
  }

  #removeSession(): StepFields {
    const attempt = this.#session();
    if (attempt === undefined) return this.#login();
    const { record } = attempt;
    this.#sessions = this.#sessions.filter((one) => one !== attempt);
    return stepOf(`removeSession ${record.uid} ${record.sessionId}`, async (store) => {
      await store.removeSession(record);
      return sessionsById(store, record.uid);
    });
  }

  #endSession(): StepFields {
    const attempt = this.#session();
    if (attempt === undefined) return this.#login();
    const reason = this.#random.pick(["logged_out", "token_changed"]);
    const { at, record } = attempt;
    return stepOf(
      `endSession ${record.uid} ${record.sessionId} ${reason}`,
      async (store, { logins }) => {
        await store.endSession(logins[at]?.session ?? record, reason);
        return sessionsById(store, record.uid);
      },
    );
  }

  #confirmSession(): StepFields {
    const attempt = this.#session();
    if (attempt === undefined) return this.#login();
    const { at, record } = attempt;
    return stepOf(
      `confirmSessions ${record.uid} ${record.sessionId}`,
      async (store, { logins }) => {
        const login = logins[at];
        if (login === undefined) return undefined;
        const [confirmation] = await store.confirmSessions([login], "n:1");
        const { kind } = confirmation ?? {}; // a session that was ended twice may have either reason
        return [kind, await sessionsById(store, record.uid)];
      },
    );
  }

  #accessToken(): StepFields {
    const token = hashOf(this.#random.pick(["k0", "k1"]));
    const owner = this.#uid;
    const lastsMs = this.#random.below(30_000);
    const isRemoved = this.#oneIn(3);
    return stepOf(
      `access token of ${owner}, ${lastsMs} ms, removed: ${isRemoved}`,
      async (store, { fixture }) => {
        const before = await store.accessTokenOwner(token);
        if (isRemoved) await store.removeAccessToken(token);
        else await store.putAccessToken(token, owner, fixture.nowMs + lastsMs);
        const password = await store.putPasswordOnce("admin", {
          passwordHash: owner,
        });
        return [before, await store.accessTokenOwner(token), password];
      },
    );
  }

  #passTime(): StepFields {
    const passMs = this.#oneIn(12) ? DAY_MS : 1 + this.#random.below(15_000);
    return stepOf(`${passMs} ms pass`, async () => undefined, { passMs });
  }

  /**
   * Sweeps after a pause. The pause is so long that the sweep also checks channels whose stream was
   * active at the last sweep.
   */
  #sweep(): StepFields {
    const sweep: PortCall = async (_, { fixture }) => {
      await fixture.store.sweep();
    };
    return stepOf("sweep, a minute later", sweep, { passMs: 60_001 });
  }

  /**
   * Restarts the store. The sessions end with the process of their node. The pause before the
   * restart makes the messages too old to count as missed by the next process.
   */
  #restart(): StepFields {
    const ended = this.#sessions;
    this.#sessions = [];
    const restart: PortCall = async (store, { fixture }) => {
      for (const { record } of ended) await store.removeSession(record);
      await store.headSeq("2:none"); // the response arrives after the events of the removals
      await fixture.reopen();
    };
    return stepOf("restart, a minute later", restart, { passMs: 60_001 });
  }
}

const hashOf = (token: string): Uint8Array =>
  token === "" ? new Uint8Array() : Uint8Array.from(hashToken(token));

/** Returns the user's sessions in the order of their ids. */
async function sessionsById(store: Store, uid: string) {
  const [sessions = []] = await store.sessionsOf([uid]);
  return sessions.toSorted((a, b) => (a.session.sessionId < b.session.sessionId ? -1 : 1));
}

/**
 * Reads a page of conversations several times, with different filters. The page begins after the
 * conversation with index `skipped`. Unless `sinceAt` is 0, the page omits conversations that
 * changed earlier than the conversation with index `sinceAt`. Returns true if each page equals the
 * same range of the complete list. The pages of two stores are not compared with each other,
 * because the order of messages in two channels may differ between stores.
 */
async function isPageRight(
  store: Store,
  uid: string,
  { count, skipped, sinceAt }: Readonly<Record<"count" | "skipped" | "sinceAt", number>>,
) {
  const all = await conversationsOf(store, uid);
  const sinceMs = sinceAt === 0 ? 0 : (all[sinceAt]?.changedAtMs ?? 0);
  const beforeId = all[skipped]?.last.messageId ?? Number.MAX_SAFE_INTEGER;
  const isRight = async (filter: Pick<ConversationRange, "onlyUnread" | "excludedTypes">) => {
    const range = { sinceMs, count, beforeId, ...filter };
    return isDeepStrictEqual(await conversationsIn(store, uid, range), inRange(all, range));
  };
  return (
    (await isRight({})) &&
    (await isRight({ onlyUnread: true })) &&
    (await isRight({ excludedTypes: [1] }))
  );
}

/** Replaces the time of a logout, which is a time of the store's own clock. */
function withoutTime(device: Device | undefined) {
  return device && { ...device, revokedS: device.revokedS !== undefined };
}
