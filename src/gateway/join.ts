// What happens between a session's connack and its being live: it gets what it missed in each channel it names, without a gap or a repeat,
// and then every channel live. Reads pages from the store at the pace the client takes them; live messages are held only for the short
// moment of each hand-over (personal ones: until the personal channels are level).

import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  messageTimeMs,
} from "../broker/model.ts";
import type { ChannelStore, Cluster, MessageStore } from "../broker/ports.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { ResumePoint, ResumeResult } from "../protocol/protocol.ts";
import type { Hub } from "./hub.ts";
import { type InboxParts, pullInbox } from "./inbox.ts";
import type { GatewayMetrics } from "./metrics.ts";
import { concernOf, readJudged } from "./read-judged.ts";
import type { Session } from "./session.ts";

export interface JoinPorts {
  readonly store: Pick<ChannelStore, "groupsOf" | "joinSeqs"> &
    Pick<MessageStore, "readMessages" | "headSeq"> &
    InboxParts["store"];
  readonly cluster: Pick<Cluster, "barrier" | "recovery" | "delivered">;
  readonly hub: Hub;
  readonly metrics: Pick<GatewayMetrics, "resumed" | "levelling"> &
    InboxParts["metrics"];
}

export interface JoinParts extends JoinPorts {
  readonly limits: JoinLimits;
}

export interface JoinLimits {
  /** Most messages and bytes read and pushed in one run. */
  readonly pageMessages: number;
  readonly pageBytes: number;
  /** The next page waits until no more than this is unread by the client. */
  readonly maxUnreadBytes: number;
}

/** More than a node catches up from before it listened to a user. */
const LATELY_MS = 10_000;

/** What planning asks. */
export interface PlanPorts {
  readonly store: Pick<ChannelStore, "groupsAmong"> &
    Pick<MessageStore, "resumeSeqs">;
  readonly hub: Pick<Hub, "subscribe" | "warm" | "serve" | "slice">;
  readonly directory: Pick<SessionDirectory, "check">;
}

interface Named {
  readonly point: ResumePoint;
  readonly result: ResumeResult;
}

/** What joining needs to know before the connack: the user's groups, and where each named channel stands. */
export interface JoinPlan {
  readonly groups: readonly string[];
  /** Of each named channel what the client has of what is there now. */
  readonly points: readonly ResumePoint[];
  readonly results: readonly ResumeResult[];
}

/** What a connect named and its login found. */
export interface JoinWishes {
  /** Groups that the user may be in. */
  readonly candidates: readonly string[];
  readonly points: readonly ResumePoint[];
}

/**
 * Also makes the node listen to the user and the groups, so that the session is live from the connack on. Two round trips: subscribe, then all reads,
 * which show what changed before the node was subscribed. Throws `unavailable`.
 */
export async function planJoin(
  session: Session,
  { candidates, points }: JoinWishes,
  { store, hub, directory }: PlanPorts,
): Promise<JoinPlan> {
  const { uid } = session;
  await hub.subscribe(session, candidates);
  const may = new Set(candidates);
  const named = new Set<string>();
  for (const { channel } of points)
    if (channel.type === GROUP_CHANNEL) named.add(channel.id);
  const [, { groups, isAll }, stands] = await Promise.all([
    hub.warm(session),
    store.groupsAmong(uid, candidates),
    hub.slice().each(points, async (point): Promise<Named> => {
      const { channel } = point;
      const isOut = channel.type === GROUP_CHANNEL && !may.has(channel.id);
      return isOut ? denied(point) : stand(uid, point, store);
    }),
    directory.check(session),
  ]);
  if (!isAll) session.membershipsStale = true;
  const mine = new Set(groups);
  await hub.serve(session, (id) => (mine.has(id) ? !named.has(id) : undefined));
  const judged = stands.map((one) => {
    const { channel } = one.point;
    const isOut = channel.type === GROUP_CHANNEL && !mine.has(channel.id);
    return isOut ? denied(one.point) : one;
  });
  noteNamed(session, judged);
  return {
    groups,
    points: judged.map(({ point }) => point),
    results: judged.map(({ result }) => result),
  };
}

/**
 * A node that is cut off may catch up from a little before it listened to the user. The client may have got that at another node: of those personal
 * channels that it heard last, what it has is not pushed again.
 */
function noteNamed(session: Session, named: readonly Named[]): void {
  const personal = named.flatMap(({ point, result: { status } }) => {
    const { channel, lastSeq: messageSeq, lastId: messageId = 0 } = point;
    const isNamed = channel.type !== GROUP_CHANNEL && status === "ok";
    const key = channelKey(channel, session.uid);
    return isNamed && messageId > 0 ? [{ key, messageSeq, messageId }] : [];
  });
  const newestId = Math.max(0, ...personal.map((one) => one.messageId));
  const sinceMs = messageTimeMs(newestId) - LATELY_MS;
  for (const { key, ...place } of personal)
    if (messageTimeMs(place.messageId) >= sinceMs) session.noteRead(key, place);
}

function denied(point: ResumePoint): Named {
  const { channel } = point;
  return { point, result: { channel, status: "denied", headSeq: 0 } };
}

/**
 * How a named channel stands. A client may remember more than a restored store has, or what was lost in a fail-over: it gets
 * the seq through which it shares the history before anything else comes, so that no receipt is taken for a sign that it has what precedes it.
 */
async function stand(
  uid: string,
  { channel, lastSeq, lastId = 0 }: ResumePoint,
  store: PlanPorts["store"],
): Promise<Named> {
  const key = channelKey(channel, uid);
  const found = await store.resumeSeqs(key, lastSeq, lastId);
  const { headSeq, sharedSeq } = found;
  const has = Math.min(sharedSeq, headSeq);
  return {
    point: { channel, lastSeq: has, lastId },
    result: { channel, status: "ok", headSeq: has < lastSeq ? has : headSeq },
  };
}

/** Makes the session level and live. Call after the connack; the session holds live messages since it entered the hub. */
export async function joinChannels(
  session: Session,
  plan: JoinPlan,
  parts: JoinParts,
): Promise<void> {
  const points = allowedPoints(session.uid, plan);
  const joining = new Joining(session, points, parts);
  parts.metrics.levelling(1);
  try {
    await Promise.all([
      joining.run(plan.groups),
      pullInbox(session, parts), // commands have an order of their own
    ]);
  } finally {
    parts.metrics.levelling(-1);
  }
}

/**
 * Makes a session that has joined level and live in one more group, from where its user became a member or it was before. One group after the
 * other. Harmless when it follows already, when its user is no member, or is told out of it meanwhile. Throws `unavailable`.
 */
export async function joinGroup(
  session: Session,
  id: string,
  parts: JoinParts,
): Promise<void> {
  if (session.ended !== undefined || session.follows(id)) return;
  const joining = new Joining(session, new Map(), parts);
  await joining.joinGroup({ id, type: GROUP_CHANNEL });
}

/** The points that may be resumed, by channel key: a channel named twice counts once, as named last. */
function allowedPoints(
  uid: string,
  { points, results }: JoinPlan,
): Map<ChannelKey, ResumePoint> {
  return new Map(
    points
      .filter((_, at) => results[at]?.status === "ok")
      .map((point) => [channelKey(point.channel, uid), point]),
  );
}

class Joining {
  readonly #session: Session;
  /** The named channels, and of the groups those that are not level yet. */
  readonly #points: Map<ChannelKey, ResumePoint>;
  readonly #parts: JoinParts;
  /** Through which seq each named channel has been pushed. */
  readonly #cursors = new Map<ChannelKey, number>();

  constructor(
    session: Session,
    points: Map<ChannelKey, ResumePoint>,
    parts: JoinParts,
  ) {
    this.#session = session;
    this.#points = points;
    this.#parts = parts;
    for (const [key, { lastSeq }] of points) this.#cursors.set(key, lastSeq);
  }

  async run(groups: readonly string[]): Promise<void> {
    await this.#followUnnamed(groups);
    await this.#resumePersonal();
    await this.#resumeNamed(groups);
    await this.#settle();
    await this.#parts.hub.cool(this.#session);
  }

  /** Held from the start: who is told out of the group meanwhile is not joining it any more. */
  async joinGroup(channel: ChannelRef): Promise<void> {
    const session = this.#session;
    const { hub } = this.#parts;
    try {
      await hub.join(session, channel.id);
      const isMember = await this.#begin(channel.id);
      if (!isMember) return hub.withdraw(session, channel.id);
      await this.#readToEnd(channel);
      await this.#handOver();
    } finally {
      const had = this.#cursors.get(this.#keyOf(channel.id));
      const isOut = session.hasJoined && !session.follows(channel.id);
      if (isOut && had !== undefined) session.noteHad(channel.id, had);
    }
  }

  /** Personal messages are held since the session entered, so reading once to the end misses nothing. */
  async #resumePersonal(): Promise<void> {
    for (const { channel } of this.#points.values())
      if (channel.type !== GROUP_CHANNEL) await this.#readToEnd(channel);
    await this.#handOver();
    this.#parts.hub.followPersonal(this.#session);
  }

  /** Live from the connack on: until its turn comes, each group serves the session as one it expects. */
  async #followUnnamed(groups: readonly string[]): Promise<void> {
    const { hub } = this.#parts;
    await hub.slice().each(groups, async (id) => {
      if (!this.#points.has(this.#keyOf(id)))
        await hub.follow(this.#session, id);
    });
  }

  /** One after the other, each live as soon as it is level. */
  async #resumeNamed(groups: readonly string[]): Promise<void> {
    const slice = this.#parts.hub.slice();
    for (const id of groups) {
      if (!this.#points.has(this.#keyOf(id))) continue;
      if (slice.isUsedUp()) await slice.rest();
      await this.#resumeGroup({ id, type: GROUP_CHANNEL });
    }
  }

  #keyOf(groupId: string): ChannelKey {
    return channelKey({ id: groupId, type: GROUP_CHANNEL }, this.#session.uid);
  }

  /** Membership may have changed since the groups were read: of that, only what ended took effect at once. */
  async #settle(): Promise<void> {
    const { hub, store } = this.#parts;
    const session = this.#session;
    while (session.membershipsStale && session.ended === undefined) {
      session.membershipsStale = false;
      session.forgetRemovals();
      const groups = new Set(await store.groupsOf(session.uid));
      for (const id of [...session.groups.keys()])
        if (!groups.has(id)) hub.unfollow(session, id);
      const missing = [...groups].filter((id) => !session.follows(id));
      await hub.subscribe(session, missing); // before the store is asked about each: no removal is missed
      await hub.warm(session);
      const slice = hub.slice();
      for (const id of missing) {
        if (slice.isUsedUp()) await slice.rest();
        if (session.ended !== undefined) break;
        const isMember = await this.#begin(id);
        if (isMember) await this.#resumeGroup({ id, type: GROUP_CHANNEL });
      }
    }
    session.joined();
  }

  /** Of a group that is not named, what was sent since its user became a member is the session's to see. False: the user is none. */
  async #begin(id: string): Promise<boolean> {
    const key = this.#keyOf(id);
    if (this.#points.has(key)) return true;
    const session = this.#session;
    const { store } = this.#parts;
    const [joinSeq] = await store.joinSeqs(id, [session.uid]);
    if (joinSeq === undefined) return false;
    if (session.hasLeft(id)) {
      await this.#parts.cluster.barrier(); // what was sent while its user was no member has come
      session.dropHeld(id); // and what is stored since is read
    }
    const hadSeq = Math.max(session.hadSeq(id), this.#cursors.get(key) ?? 0);
    const headSeq = hadSeq > joinSeq ? await store.headSeq(key) : joinSeq;
    session.forgetHad(id);
    const isLost = hadSeq > headSeq; // in a fail-over: others have or get those seqs
    const lastSeq = isLost ? joinSeq : Math.max(joinSeq, hadSeq);
    const channel = { id, type: GROUP_CHANNEL } as const;
    this.#points.set(key, { channel, lastSeq });
    this.#cursors.set(key, lastSeq);
    return true;
  }

  /** Reads without holding first, however long that takes, then holds for the short rest. */
  async #resumeGroup(channel: ChannelRef): Promise<void> {
    await this.#readToEnd(channel);
    if (!this.#isOver(channel)) await this.joinGroup(channel);
  }

  /** What was read of a group is published; what was published and not read is held: pushes that, and goes live at once. */
  async #handOver(): Promise<void> {
    const { cluster, hub } = this.#parts;
    const session = this.#session;
    await cluster.barrier();
    session.release(this.#cursors);
    if (session.joining === undefined) return; // personal channels, or told out of the group meanwhile
    const id = session.joining.channelId;
    const key = this.#keyOf(id);
    this.#points.delete(key);
    await hub.follow(session, id, this.#cursors.get(key));
  }

  /** Nothing of the channel may go out any more. */
  #isOver({ id, type }: ChannelRef): boolean {
    const session = this.#session;
    if (session.ended !== undefined) return true;
    if (type !== GROUP_CHANNEL) return false;
    const isOut = session.hasJoined && session.joining?.channelId !== id;
    return isOut || session.wasRemovedFrom(id);
  }

  async #readToEnd(channel: ChannelRef): Promise<void> {
    const key = channelKey(channel, this.#session.uid);
    let more = true;
    while (more && !this.#isOver(channel))
      more = await this.#readPage(key, channel);
  }

  /** Asked after a read: a removal before it may not have been delivered here. */
  async #mayRead({ id, type }: ChannelRef): Promise<boolean> {
    if (type !== GROUP_CHANNEL) return true;
    const session = this.#session;
    const [joinSeq] = await this.#parts.store.joinSeqs(id, [session.uid]);
    if (joinSeq !== undefined) return !this.#isOver({ id, type });
    await this.#parts.cluster.barrier(); // the removal is delivered, and ends the resume, unless the user is back
    return false;
  }

  /** Pushes the next run, and tells whether there is more. A run covers what expired inside it and at its end. */
  async #readPage(key: ChannelKey, channel: ChannelRef): Promise<boolean> {
    const { store, cluster, limits, metrics, hub } = this.#parts;
    const afterSeq = this.#cursors.get(key) ?? 0;
    const headSeq = await store.headSeq(key);
    if (headSeq <= afterSeq) return false;
    const concerns = concernOf(this.#session.uid, channel);
    const { messages, more } = await readJudged(cluster, concerns, () =>
      store.readMessages(key, {
        fromSeq: afterSeq + 1,
        toSeq: headSeq,
        limit: limits.pageMessages,
        maxBytes: limits.pageBytes,
        reverse: false,
      }),
    );
    if (this.#isOver(channel)) return false;
    if (!(await this.#mayRead(channel))) return true; // read again, unless it is over
    const last = messages.at(-1);
    const throughSeq = more ? (last?.messageSeq ?? afterSeq) : headSeq;
    this.#cursors.set(key, throughSeq);
    metrics.resumed(messages.length);
    this.#session.push({
      kind: "messages",
      channel,
      afterSeq,
      throughSeq,
      messages,
    });
    if (last !== undefined && channel.type !== GROUP_CHANNEL)
      this.#session.noteRead(key, last);
    for (const { stream } of messages) hub.shown(this.#session, stream);
    await this.#session.writable(limits.maxUnreadBytes);
    return more;
  }
}
