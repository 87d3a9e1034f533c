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
import type { Session } from "./session.ts";

export interface JoinPorts {
  readonly store: Pick<ChannelStore, "groupsOf"> &
    Pick<MessageStore, "readMessages" | "headSeq">;
  readonly cluster: Pick<Cluster, "barrier">;
  readonly hub: Hub;
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
  parts: JoinPorts & { readonly limits: JoinLimits },
): Promise<void> {
  const joining = new Joining(session, parts);
  const allowed = plan.points.filter(
    (_, at) => plan.results[at]?.status === "ok",
  );
  await joining.resumePersonal(allowed);
  await joining.joinGroups(plan.groups, allowed);
  await joining.settle();
}

class Joining {
  readonly #session: Session;
  readonly #parts: JoinPorts & { readonly limits: JoinLimits };
  /** Through which seq each named channel has been pushed. */
  readonly #cursors = new Map<ChannelKey, number>();

  constructor(
    session: Session,
    parts: JoinPorts & { readonly limits: JoinLimits },
  ) {
    this.#session = session;
    this.#parts = parts;
  }

  /** Personal messages are held since the session entered, so reading once to the end misses nothing. */
  async resumePersonal(points: readonly ResumePoint[]): Promise<void> {
    for (const point of points)
      if (point.channel.type !== GROUP_CHANNEL) {
        this.#start(point);
        await this.#readToEnd(point.channel);
      }
    await this.#handOver();
  }

  async joinGroups(
    groups: readonly string[],
    points: readonly ResumePoint[],
  ): Promise<void> {
    const named = new Map(
      points
        .filter(({ channel }) => channel.type === GROUP_CHANNEL)
        .map((point) => [point.channel.id, point]),
    );
    for (const channelId of groups)
      if (!named.has(channelId))
        this.#parts.hub.follow(this.#session, channelId);
    for (const point of named.values()) await this.#resumeGroup(point);
  }

  /** Membership may have changed since the groups were read; events of such changes were only noted. */
  async settle(): Promise<void> {
    const { hub, store } = this.#parts;
    const session = this.#session;
    while (session.membershipsStale && session.ended === undefined) {
      session.membershipsStale = false;
      const groups = new Set(await store.groupsOf(session.uid));
      for (const { channelId } of [...session.groups])
        if (!groups.has(channelId)) hub.unfollow(session, channelId);
      for (const channelId of groups) hub.follow(session, channelId);
    }
    session.hasJoined = true;
  }

  /** Reads without holding first, however long that takes, then holds for the short rest. */
  async #resumeGroup(point: ResumePoint): Promise<void> {
    const { hub } = this.#parts;
    const session = this.#session;
    this.#start(point);
    await this.#readToEnd(point.channel);
    if (session.ended !== undefined) return;
    await hub.join(session, point.channel.id);
    await this.#readToEnd(point.channel);
    await this.#handOver();
  }

  /** Everything read is also published; what was published and not read is held: push that, and go live. */
  async #handOver(): Promise<void> {
    const { cluster, hub } = this.#parts;
    const session = this.#session;
    await cluster.barrier();
    session.release(this.#cursors);
    if (session.joining !== undefined)
      hub.follow(session, session.joining.channelId);
  }

  #start({ channel, lastSeq }: ResumePoint): void {
    this.#cursors.set(channelKey(channel, this.#session.uid), lastSeq);
  }

  async #readToEnd(channel: ChannelRef): Promise<void> {
    const session = this.#session;
    const key = channelKey(channel, session.uid);
    let more = true;
    while (more && session.ended === undefined)
      more = await this.#readPage(key, channel);
  }

  /** Pushes the next run, and tells whether there is more. A run covers what expired inside it and at its end. */
  async #readPage(key: ChannelKey, channel: ChannelRef): Promise<boolean> {
    const { store, limits } = this.#parts;
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
    const lastSeq = messages.at(-1)?.messageSeq ?? afterSeq;
    const throughSeq = more ? lastSeq : headSeq;
    this.#cursors.set(key, throughSeq);
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
