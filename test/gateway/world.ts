// The world of the gateway's tests: the hub of a node between a simulated server and recorded
// connections, and sessions that join it.

import {
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../src/broker/model.ts";
import type { ClusterEvent } from "../../src/broker/ports.ts";
import { CatchUps } from "../../src/gateway/catch-up.ts";
import { FanOutTurns } from "../../src/gateway/fan-out-turns.ts";
import { Groups } from "../../src/gateway/groups.ts";
import { Hub } from "../../src/gateway/hub.ts";
import { goLive, type PlanPorts, planJoin } from "../../src/gateway/opening.ts";
import { SessionResync } from "../../src/gateway/resync.ts";
import { Session } from "../../src/gateway/session.ts";
import { PresenceWatch } from "../../src/gateway/watch.ts";
import type { ResumePoint, ResumeResult } from "../../src/protocol/protocol.ts";
import type { Random } from "./random.ts";
import { CountingCodec, type RecordedConnection, Wire } from "./recorder.ts";
import { SharedServer } from "./shared-server.ts";

export const fanOutTurns = () =>
  new FanOutTurns((error) => {
    throw error;
  });

export const group = (id: string): ChannelRef => ({ id, type: GROUP_CHANNEL });
export const person = (id: string): ChannelRef => ({
  id,
  type: PERSON_CHANNEL,
});

export interface Joiner {
  readonly session: Session;
  readonly connection: RecordedConnection;
  readonly codec: CountingCodec;
  readonly points: readonly ResumePoint[];
  /** Results of the resume points, as they are in the CONNACK. */
  results: readonly ResumeResult[];
  /** True if the session has caught up and is live. */
  isLive: boolean;
}

export interface JoinerSpec {
  readonly uid: string;
  readonly points?: readonly ResumePoint[];
  readonly format?: string;
  readonly maxHeldBytes?: number;
  /** See `Codec.acknowledges`. */
  readonly acknowledges?: boolean;
  readonly resendAfterMs?: number;
  readonly clock?: () => number;
}

const METRICS = {
  resumed: () => {},
  eventPushed: () => {},
  caughtUp: () => {},
  commandsPushed: () => {},
  catchingUp: () => {},
};

/**
 * Maximum number of unread bytes. A session lags above a quarter of this number, and has caught up
 * at an eighth.
 */
const MAX_BUFFERED_BYTES = 800;
const LIMITS = { pageMessages: 3, pageBytes: 1000, maxUnreadBytes: 100 };

export class World {
  readonly server: SharedServer;
  readonly hub: Hub;
  readonly groups: Groups;
  readonly catchUps: CatchUps;
  readonly resync: SessionResync;
  /** Called after the hub has handled an event. */
  onDelivered: (event: ClusterEvent) => void = () => {};
  /** Receives each event of the cluster. A test may replace it to lose events. */
  handleEvent: (event: ClusterEvent) => void = (event) => this.hub.deliver(event);
  readonly watch: PresenceWatch;
  /** Work charged to each user for pushes to watchers. */
  readonly charged = new Map<string, number>();
  /** Unexpected errors that were reported. */
  readonly bugs: unknown[] = [];
  readonly #wire = new Wire();
  #sessions = 0;

  constructor(random: Random) {
    this.server = new SharedServer(random, (event) => {
      this.handleEvent(event);
      this.onDelivered(event);
    });
    const { store, cluster, directory } = this.server;
    const onError = (error: unknown) => this.bugs.push(error);
    this.watch = new PresenceWatch({
      ...{ cluster, directory, onError },
      ...{ retryMs: 1, offlineDelayMs: 0 },
      charge: (uid, work) => this.charged.set(uid, (this.charged.get(uid) ?? 0) + work),
    });
    const fanOuts = new FanOutTurns(onError);
    const groups = new Groups(cluster, fanOuts);
    const catchUps = new CatchUps({
      ...{ store, cluster, groups, onError, metrics: METRICS },
      limits: { ...LIMITS, maxBufferedBytes: MAX_BUFFERED_BYTES },
      directory: { endedBy: async () => undefined },
    });
    const resync = new SessionResync({
      ...{ store, cluster, groups, catchUps, onError },
      ...{ metrics: METRICS, limits: LIMITS, retryMs: 1 },
    });
    this.hub = new Hub({
      fanOuts,
      ...{ cluster, groups, catchUps, resync, watch: this.watch },
      ...{ metrics: METRICS, publisher: this.#wire },
    });
    this.groups = groups;
    this.catchUps = catchUps;
    this.resync = resync;
  }

  /** Creates a session that has not entered the hub yet. */
  session(spec: JoinerSpec): Joiner {
    const { uid, points = [], format = "f", maxHeldBytes = 1_000_000 } = spec;
    const { acknowledges = false, resendAfterMs = 0, clock = Date.now } = spec;
    this.#sessions += 1;
    const connection = this.#wire.connect();
    const codec = new CountingCodec(format, acknowledges);
    const session = new Session({
      sessionId: `s${this.#sessions}`,
      uid,
      codec,
      connection,
      maxHeldBytes,
      resendAfterMs,
      clock,
    });
    return { session, connection, codec, points, results: [], isLive: false };
  }

  get planPorts(): PlanPorts {
    const { store, directory } = this.server;
    return { store, directory, hub: this.hub, groups: this.groups, limits: LIMITS };
  }

  /** Enters the hub, plans and joins, as the gateway does for a CONNECT. */
  async join(joiner: Joiner): Promise<void> {
    const { session, points } = joiner;
    const { hub, catchUps, resync } = this;
    const { store, cluster } = this.server;
    hub.enter(session);
    const candidates = await store.groupsOf(session.uid); // as a login returns them
    if (session.ended !== undefined) return;
    const endsSinceMs = undefined;
    const plan = await planJoin(session, { candidates, points, endsSinceMs }, this.planPorts);
    if (session.ended !== undefined) return;
    joiner.results = plan.results;
    session.stage = "connected";
    await goLive(session, plan, {
      ...{ store, cluster, catchUps, resync },
      ...{ metrics: METRICS, limits: LIMITS },
    });
    joiner.isLive = session.ended === undefined;
  }

  /** Creates a session and resolves when it is live. */
  async live(spec: JoinerSpec): Promise<Joiner> {
    const joiner = this.session(spec);
    const joining = this.join(joiner);
    await this.server.settle();
    await joining;
    return joiner;
  }

  /** Does what the gateway does when a connection closes. */
  disconnect({ session }: Joiner): void {
    session.disconnected("goodbye");
    this.hub.leave(session);
  }

  headSeq(channel: ChannelRef, uid: string): number {
    return this.server.headSeq(channelKey(channel, uid));
  }
}
