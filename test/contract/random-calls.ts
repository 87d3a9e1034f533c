// A random course of calls of the Store port, the same for the same seed: few users, channels and
// names, so that calls meet. State: what was named so far.

import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
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
  LoggedInSession,
  LoginTerms,
  Store,
} from "../../src/broker/ports.ts";
import { hashToken, tokenTag } from "../../src/broker/tokens.ts";
import type { Random } from "../support/random.ts";
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

/** One side on which the course is taken. */
export interface CallContext {
  readonly fixture: StoreFixture;
  /** Sessions in the order in which they were entered. */
  readonly logins: LoggedInSession[];
}

export interface Step {
  /** The call, to be read. */
  readonly text: string;
  /** How much time passes before it. */
  readonly passMs: number;
  /** Where it may publish. */
  readonly channels: readonly Place[];
  /** It replaces members, and the event about it may name nobody. */
  readonly isReset: boolean;
  readonly run: (world: CallContext) => Promise<unknown>;
}

type Call = Pick<Step, "run"> & Partial<Step>;
/** A channel, and who says something in it. */
interface Place {
  readonly channel: ChannelRef;
  readonly fromUid: string;
}
/** A session and its place in `World.logins`. */
interface Named {
  readonly at: number;
  readonly record: SessionRecord;
}
/** A call of the port by its name; the answer is what is compared. */
type Ask = (store: Store, world: CallContext) => unknown;

const call = (text: string, ask: Ask, over: Partial<Step> = {}): Call => ({
  text,
  run: async (world) => ask(world.fixture.store, world),
  ...over,
});

const write = (value: unknown) =>
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
  readonly #dice: readonly (() => Call)[];
  /** Sessions that asked to be entered, and those of them that were not removed since. */
  readonly #named: Named[] = [];
  #sessions: readonly Named[] = [];
  #loginCount = 0;
  /** By their keys, those that something was said in. */
  readonly #places = new Map<ChannelKey, Place>();

  constructor(random: Random) {
    this.#random = random;
    const calls: readonly (readonly [number, () => Call])[] = [
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
    this.#dice = calls.flatMap(([weight, make]) => Array(weight).fill(make));
  }

  next(): Step {
    const made = this.#random.pick(this.#dice)();
    const { text = "", passMs = 1, channels = [], isReset = false } = made;
    return { text, passMs, channels, isReset, run: made.run };
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

  #place(): Place & { readonly key: ChannelKey } {
    const place = { channel: this.#random.pick(CHANNELS), fromUid: this.#uid };
    const key = channelKey(place.channel, place.fromUid);
    this.#places.set(key, place);
    return { ...place, key };
  }

  #rarely(one: number): boolean {
    return this.#random.below(one) === 0;
  }

  #append(): Call {
    const random = this.#random;
    const drafts = Array.from({ length: 1 + random.below(4) }, () => {
      const place = this.#place();
      const isUser = !this.#rarely(10) || place.channel.type === 1;
      const fromUid = isUser ? place.fromUid : random.pick([STRANGER, SYSTEM_UID]);
      return draftOf({
        ...{ channel: place.channel, fromUid },
        clientMsgNo: random.flip() ? "" : random.pick(CLIENT_MSG_NOS),
        header: { noPersist: this.#rarely(8), redDot: !this.#rarely(4) },
        expireS: random.below(3) === 0 ? 1 + random.below(60) : 0,
        tagKey: random.maybe(() => "tag"),
        streamNo: this.#rarely(8) ? "s0" : undefined,
        payload: Buffer.from("x".repeat(random.below(40))),
        origin: this.#rarely(4) ? "session" : undefined,
        permission: random.pick([
          ...(["granted", "check", "check"] as const),
          ...(["check_friends", "check_exempt"] as const),
          ...(["check_open", "send_banned"] as const),
        ]),
      });
    });
    return call(
      drafts
        .map(({ key: _, payload, ...draft }) => write({ ...draft, payload: payload.length }))
        .join("\n  "),
      (store) => Promise.all(drafts.map((draft) => store.append(draft))),
      { channels: drafts },
    );
  }

  #readMessages(): Call {
    const random = this.#random;
    const { key } = this.#place();
    const fromSeq = random.below(30);
    const range = {
      fromSeq,
      toSeq: random.flip() ? Number.MAX_SAFE_INTEGER : fromSeq + random.below(9),
      limit: 1 + random.below(12),
      reverse: random.flip(),
      maxBytes: random.pick([1, Number.MAX_SAFE_INTEGER]),
    };
    return call(`readMessages ${key} ${write(range)}`, async (store) => [
      await store.headSeq(key),
      await store.readMessages(key, range),
    ]);
  }

  #resumeSeqs(): Call {
    const { key } = this.#place();
    const lastSeq = this.#random.below(30);
    const nth = this.#random.below(20) - 1;
    return call(`resumeSeqs ${key} ${lastSeq} id of message ${nth}`, async (store) => {
      const { messages } = await store.readMessages(key, ALL);
      const lastId = messages[nth]?.messageId ?? 0;
      const seqs = await store.resumeSeqs(key, lastSeq, lastId);
      const shared = seqsOf(messages).filter((s) => s <= seqs.lastCommonSeq);
      return [seqs.headSeq, shared]; // what expired and is still kept is shared or not
    });
  }

  #streamEvents(): Call {
    const random = this.#random;
    const { channel, fromUid } = this.#place();
    const drafts = Array.from({ length: 1 + random.below(4) }, () =>
      eventOf(random.pick(TYPES), random.pick(["", "text", "{}", "äö"]), {
        ...{ channel, fromUid, clientMsgNo: random.pick(STREAMS) },
        eventId: this.#rarely(3) ? random.pick(EVENT_IDS) : undefined,
        timestampMs: this.#rarely(4) ? random.below(9999) : undefined,
        force: this.#rarely(4),
      }),
    );
    return call(
      drafts.map(({ key: _, ...draft }) => write(draft)).join("\n  "),
      (store) => Promise.all(drafts.map((draft) => store.streamEvent(draft))),
      { channels: [{ channel, fromUid }] },
    );
  }

  #cancelStream(): Call {
    const { key, ...place } = this.#place();
    const name = this.#random.pick(STREAMS);
    return call(`cancelStream ${key} ${name}`, (store) => store.cancelStream(key, name), {
      channels: [place],
    });
  }

  #interruptStreams(): Call {
    const silentMs = this.#random.below(20_000);
    return call(
      `interruptStreams ${silentMs} ms ago`,
      (store, { fixture }) => store.interruptStreams(fixture.nowMs - silentMs),
      { channels: [...this.#places.values()] },
    );
  }

  #readStream(): Call {
    const { key, fromUid } = this.#place();
    const name = this.#random.pick(STREAMS);
    const index = this.#random.below(8) - 1;
    return call(`stream ${key} ${name} ${index} of ${fromUid}`, async (store) => [
      await store.stream(key, name),
      await store.activeStream(key),
      await store.streamTextOffset(key, name, index),
      sorted((await store.personalStreamsOf(fromUid)).map((one) => one.key)),
    ]);
  }

  #changeConversation(): Call {
    const random = this.#random;
    const { channel, fromUid } = this.#place();
    const change = random.pick<ConversationChange>([
      { kind: "read", seq: random.below(40) },
      { kind: "unread", unread: random.below(10) },
      { kind: "delete" },
    ]);
    return call(`changeConversation ${fromUid} ${write(channel)} ${write(change)}`, (store) =>
      store.changeConversation(fromUid, channel, change),
    );
  }

  #readConversations(): Call {
    const uid = this.#uid;
    const limit = 1 + this.#random.below(9);
    const bounds = {
      limit,
      maxBytes: this.#random.pick([1, Number.MAX_SAFE_INTEGER]),
    };
    return call(`conversations ${uid} ${write(bounds)}`, async (store) => [
      byChannel(await store.conversationsOf(uid)),
      await store.readConversations(uid, CHANNELS, bounds),
      await Promise.all(CHANNELS.map((one) => store.conversation(uid, one))),
    ]);
  }

  /** The record of a group or of a user. */
  #record() {
    return this.#rarely(4) ? person(this.#uid) : group(this.#group);
  }

  #flags() {
    const flag = () => this.#rarely(3);
    return {
      ...{ ban: flag(), sendBan: flag(), large: flag() },
      ...{ allowStranger: flag(), disband: this.#rarely(40) },
    };
  }

  #createChannel(): Call {
    const large = this.#rarely(4);
    const info = { ...this.#record(), large };
    const uids = this.#uids;
    return call(`createChannel ${write(info)} ${uids}`, (store) => store.createChannel(info, uids));
  }

  #updateChannel(): Call {
    const info = this.#record();
    const flags = this.#flags();
    return call(`updateChannel ${write(info)} ${write(flags)}`, (store) =>
      store.updateChannel(info, flags),
    );
  }

  #addSubscribers(): Call {
    const info = this.#record();
    const uids = this.#uids;
    const membership = this.#random.pick(["permanent", "temporary"]);
    const reset = this.#rarely(5);
    return call(
      `addSubscribers ${info.type}:${info.id} ${uids} ${membership} ${reset}`,
      (store) => store.addSubscribers(info, uids, { membership, reset }),
      { isReset: reset },
    );
  }

  #removeSubscribers(): Call {
    const info = this.#record();
    const uids = this.#rarely(4) ? this.#uids : [this.#uid];
    const membership = this.#random.pick(["permanent", "temporary"]);
    return call(
      `removeSubscribers ${info.type}:${info.id} ${uids} ${membership}`,
      (store) => store.removeSubscribers(info, uids, membership),
      {
        channels: info.type === 2 ? [{ channel: info, fromUid: uids[0] ?? "" }] : [],
      },
    );
  }

  #changeList(): Call {
    const random = this.#random;
    const info = this.#record();
    const list = random.pick(["denylist", "allowlist"] as const);
    const change = {
      kind: random.pick(["add", "remove", "remove", "replace"] as const),
      uids: this.#uids,
    };
    return call(`changeList ${info.type}:${info.id} ${list} ${write(change)}`, (store) =>
      store.changeList(info, list, change),
    );
  }

  #readChannel(): Call {
    const info = this.#record();
    const [uid, other, id] = [this.#uid, this.#uid, this.#group];
    return call(`read ${info.type}:${info.id} ${uid} ${other} ${id}`, async (store) => {
      const among = await store.groupsAmong(uid, GROUPS);
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
        sorted(among.groups),
        (inbox.at(-1)?.inboxSeq ?? 0) <= (state?.inboxSeq ?? 0),
      ];
    });
  }

  #appendCommand(): Call {
    const random = this.#random;
    const { channel, fromUid } = this.#place();
    const recipients = this.#uids;
    const pushOnlyRecipients = this.#uids.filter((uid) => !recipients.includes(uid));
    const draft = commandOf({
      ...{ channel, fromUid, recipients, pushOnlyRecipients },
      clientMsgNo: random.flip() ? "" : random.pick(CLIENT_MSG_NOS),
      expireS: random.below(3) === 0 ? 1 + random.below(60) : 0,
    });
    const { key: _, payload: _payload, ...rest } = draft;
    return call(`appendCommand ${write(rest)}`, (store) => store.appendCommand(draft));
  }

  #readInbox(): Call {
    const random = this.#random;
    const [uid, after] = [this.#uid, random.below(20)];
    const page = {
      limit: 1 + random.below(9),
      maxBytes: random.pick([1, 60, Number.MAX_SAFE_INTEGER]),
    };
    return call(`readInbox ${uid} ${after} ${write(page)}`, (store) =>
      store.readInbox(uid, after, page),
    );
  }

  #acknowledge(): Call {
    const uid = this.#uid;
    const seqs = this.#random.list(8, () => this.#random.below(30));
    return call(`acknowledgeCommands ${uid} ${seqs}`, (store) =>
      store.acknowledgeCommands(uid, seqs),
    );
  }

  #putDevice(): Call {
    const random = this.#random;
    const token = random.pick(TOKENS);
    const device = {
      ...{ uid: this.#uid, flag: random.pick(FLAGS) },
      ...{ level: random.pick(LEVELS), tokenHash: hashOf(token) },
    };
    const { uid, flag } = device;
    return call(`putDevice ${uid} ${flag} ${device.level} ${token}`, async (store) => [
      await store.putDevice(device),
      await store.device(uid, flag),
    ]);
  }

  #login(): Call {
    const random = this.#random;
    const uid = this.#uid;
    const token = this.#rarely(3) ? random.pick(TOKENS) : undefined;
    const tokenHash = token === undefined ? undefined : hashOf(token);
    const at = this.#loginCount++;
    const record: SessionRecord = {
      ...{ sessionId: `session-${at}`, nodeId: "n", uid },
      ...{ flag: random.pick(FLAGS), level: random.pick(LEVELS) },
      deviceId: random.pick(["", "d0", "d1"]),
      tokenTag: tokenHash === undefined ? "" : tokenTag(tokenHash),
    };
    const known = this.#named.filter((one) => one.record.uid === uid);
    const claimed = known.length > 0 && random.flip() ? random.pick(known.slice(-6)) : undefined;
    const label = this.#rarely(4) ? random.pick(["l0", "l1", "l2"]) : undefined;
    const claimText = label ?? claimed?.record.sessionId;
    this.#named.push({ at, record });
    this.#sessions = [...this.#sessions, { at, record }];
    return call(
      `login ${write(record)} token ${token} claim ${claimText}`,
      async (store, { logins }) => {
        const order = claimed && logins[claimed.at]?.order;
        const claim: Claim | undefined =
          label !== undefined ? { label } : order ? { order } : undefined;
        const terms: LoginTerms = { claim, tokenHash };
        const result = await store.login(record, "n:1", terms);
        if (result.kind !== "entered") return result;
        const { groups, ...loggedIn } = result;
        logins[at] = loggedIn;
        const own = await store.groupsOf(uid);
        const others = await entries(store, uid);
        return [loggedIn, own.every((id) => groups.includes(id)), others];
      },
    );
  }

  /** One whose node has not removed it. */
  #session(): Named | undefined {
    if (this.#sessions.length === 0) return undefined;
    return this.#random.pick(this.#sessions.slice(-12));
  }

  #removeSession(): Call {
    const found = this.#session();
    if (found === undefined) return this.#login();
    const { record } = found;
    this.#sessions = this.#sessions.filter((one) => one !== found);
    return call(`removeSession ${record.uid} ${record.sessionId}`, async (store) => {
      await store.removeSession(record);
      return entries(store, record.uid);
    });
  }

  #endSession(): Call {
    const found = this.#session();
    if (found === undefined) return this.#login();
    const reason = this.#random.pick(["logged_out", "token_changed"]);
    const { at, record } = found;
    return call(
      `endSession ${record.uid} ${record.sessionId} ${reason}`,
      async (store, { logins }) => {
        await store.endSession(logins[at]?.session ?? record, reason);
        return entries(store, record.uid);
      },
    );
  }

  #confirmSession(): Call {
    const found = this.#session();
    if (found === undefined) return this.#login();
    const { at, record } = found;
    return call(`confirmSessions ${record.uid} ${record.sessionId}`, async (store, { logins }) => {
      const login = logins[at];
      if (login === undefined) return undefined;
      const [answer] = await store.confirmSessions([login], "n:1");
      const { kind } = answer ?? {}; // one that was ended twice has either reason
      return [kind, await entries(store, record.uid)];
    });
  }

  #accessToken(): Call {
    const token = hashOf(this.#random.pick(["k0", "k1"]));
    const owner = this.#uid;
    const lastsMs = this.#random.below(30_000);
    const isRemoved = this.#rarely(3);
    return call(
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

  #passTime(): Call {
    const passMs = this.#rarely(12) ? DAY_MS : 1 + this.#random.below(15_000);
    return call(`${passMs} ms pass`, async () => undefined, { passMs });
  }

  /** So late that a channel whose stream was active at the last sweep is looked at again. */
  #sweep(): Call {
    const sweep: Ask = async (_, { fixture }) => {
      await fixture.store.sweep();
    };
    return call("sweep, a minute later", sweep, { passMs: 60_001 });
  }

  /**
   * Sessions end with the process of their node. Later than messages that the next one could take
   * for missed ones.
   */
  #restart(): Call {
    const ended = this.#sessions;
    this.#sessions = [];
    const restart: Ask = async (store, { fixture }) => {
      for (const { record } of ended) await store.removeSession(record);
      await store.headSeq("2:none"); // events of it have come then
      await fixture.reopen();
    };
    return call("restart, a minute later", restart, { passMs: 60_001 });
  }
}

const hashOf = (token: string): Uint8Array =>
  token === "" ? new Uint8Array() : Uint8Array.from(hashToken(token));

/** The user's sessions, by their names. */
async function entries(store: Store, uid: string) {
  const [found = []] = await store.sessionsOf([uid]);
  return found.toSorted((a, b) => (a.session.sessionId < b.session.sessionId ? -1 : 1));
}
