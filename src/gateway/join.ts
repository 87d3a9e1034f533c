// What happens between a session's connack and its being live: it gets what it missed in each channel it names, without a gap or a repeat,
// and then every channel live. Reads pages from the store at the pace the client takes them; live messages are held only for the short
// moment of each hand-over (personal ones: until the personal channels are level).

import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
} from "../broker/model.ts";
import type { ChannelStore, Cluster, MessageStore } from "../broker/ports.ts";
import type { ResumePoint, ResumeResult } from "../protocol/protocol.ts";
import type { Hub } from "./hub.ts";
import type { GatewayMetrics } from "./metrics.ts";
import type { Session } from "./session.ts";

export interface JoinPorts {
  readonly store: Pick<ChannelStore, "groupsOf"> &
    Pick<MessageStore, "readMessages" | "headSeq">;
  readonly cluster: Pick<Cluster, "barrier">;
  readonly hub: Hub;
  readonly metrics: Pick<GatewayMetrics, "resumed">;
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

/** What joining needs to know before the connack: the user's groups, and where each named channel stands. */
export interface JoinPlan {
  readonly groups: readonly string[];
  readonly points: readonly ResumePoint[];
  readonly results: readonly ResumeResult[];
}

export async function planJoin(
  uid: string,
  points: readonly ResumePoint[],
  { store }: Pick<JoinPorts, "store">,
): Promise<JoinPlan> {
  const groups = await store.groupsOf(uid);
  const mine = new Set(groups);
  const stand = async ({ channel }: ResumePoint): Promise<ResumeResult> => {
    if (channel.type === GROUP_CHANNEL && !mine.has(channel.id))
      return { channel, status: "denied", headSeq: 0 };
    const headSeq = await store.headSeq(channelKey(channel, uid));
    return { channel, status: "ok", headSeq };
  };
  return { groups, points, results: await Promise.all(points.map(stand)) };
}

/** Makes the session level and live. Call after the connack; the session holds live messages since it entered the hub. */
export async function joinChannels(
  session: Session,
  plan: JoinPlan,
  parts: JoinParts,
): Promise<void> {
  const points = allowedPoints(session.uid, plan);
  const joining = new Joining(session, points, parts);
  await joining.followUnnamed(plan.groups);
  await joining.resumePersonal();
  await joining.resumeNamed(plan.groups);
  await joining.settle();
}

/** The points that may be resumed, by channel key: a channel named twice counts once, as named last. */
function allowedPoints(
  uid: string,
  { points, results }: JoinPlan,
): Map<ChannelKey, ResumePoint> {
  return new Map(
    points
      .map(({ channel, lastSeq }, at): ResumePoint => {
        const headSeq = results[at]?.headSeq ?? 0; // a client may remember more than a restored store has
        return { channel, lastSeq: Math.min(lastSeq, headSeq) };
      })
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

  /** Personal messages are held since the session entered, so reading once to the end misses nothing. */
  async resumePersonal(): Promise<void> {
    for (const { channel } of this.#points.values())
      if (channel.type !== GROUP_CHANNEL) await this.#readToEnd(channel);
    await this.#handOver();
  }

  /** Live from the connack on: subscribed before anything is waited for. */
  async followUnnamed(groups: readonly string[]): Promise<void> {
    const unnamed = groups.filter((id) => !this.#points.has(this.#keyOf(id)));
    const { hub } = this.#parts;
    await Promise.all(unnamed.map((id) => hub.follow(this.#session, id)));
  }

  /** One after the other, each live as soon as it is level. */
  async resumeNamed(groups: readonly string[]): Promise<void> {
    for (const id of groups)
      if (this.#points.has(this.#keyOf(id)))
        await this.#resumeGroup({ id, type: GROUP_CHANNEL });
  }

  #keyOf(groupId: string): ChannelKey {
    return channelKey({ id: groupId, type: GROUP_CHANNEL }, this.#session.uid);
  }

  /** Membership may have changed since the groups were read: of that, only what ended took effect at once. */
  async settle(): Promise<void> {
    const { hub, store } = this.#parts;
    const session = this.#session;
    while (session.membershipsStale && session.ended === undefined) {
      session.membershipsStale = false;
      session.forgetRemovals();
      const groups = new Set(await store.groupsOf(session.uid));
      for (const { channelId } of [...session.groups])
        if (!groups.has(channelId)) hub.unfollow(session, channelId);
      const missing = [...groups].filter((id) => !session.follows(id));
      await this.followUnnamed(missing);
      await this.resumeNamed(missing);
    }
    session.hasJoined = true;
  }

  /** Reads without holding first, however long that takes, then holds for the short rest. */
  async #resumeGroup(channel: ChannelRef): Promise<void> {
    await this.#readToEnd(channel);
    if (this.#isOver(channel)) return;
    await this.#parts.hub.join(this.#session, channel.id);
    await this.#readToEnd(channel);
    await this.#handOver();
  }

  /** Everything read is also published; what was published and not read is held: push that, and go live in the same breath. */
  async #handOver(): Promise<void> {
    const { cluster, hub } = this.#parts;
    const session = this.#session;
    await cluster.barrier();
    session.release(this.#cursors);
    if (session.joining === undefined) return; // personal channels, or told out of the group meanwhile
    const id = session.joining.channelId;
    this.#points.delete(this.#keyOf(id));
    await hub.follow(session, id);
  }

  /** Nothing of the channel may go out any more. */
  #isOver({ id, type }: ChannelRef): boolean {
    const session = this.#session;
    if (session.ended !== undefined) return true;
    return type === GROUP_CHANNEL && session.wasRemovedFrom(id);
  }

  async #readToEnd(channel: ChannelRef): Promise<void> {
    const key = channelKey(channel, this.#session.uid);
    let more = true;
    while (more && !this.#isOver(channel))
      more = await this.#readPage(key, channel);
  }

  /** Pushes the next run, and tells whether there is more. A run covers what expired inside it and at its end. */
  async #readPage(key: ChannelKey, channel: ChannelRef): Promise<boolean> {
    const { store, limits, metrics } = this.#parts;
    const afterSeq = this.#cursors.get(key) ?? 0;
    const headSeq = await store.headSeq(key);
    if (headSeq <= afterSeq) return false;
    const { messages, more } = await store.readMessages(key, {
      fromSeq: afterSeq + 1,
      toSeq: headSeq,
      limit: limits.pageMessages,
      maxBytes: limits.pageBytes,
      reverse: false,
    });
    if (this.#isOver(channel)) return false;
    const lastSeq = messages.at(-1)?.messageSeq ?? afterSeq;
    const throughSeq = more ? lastSeq : headSeq;
    this.#cursors.set(key, throughSeq);
    metrics.resumed(messages.length);
    this.#session.push({
      kind: "messages",
      channel,
      afterSeq,
      throughSeq,
      messages,
    });
    await this.#session.writable(limits.maxUnreadBytes);
    return more;
  }
}
