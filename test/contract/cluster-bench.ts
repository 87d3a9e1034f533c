// What the Cluster contract's suites work with: a driver that opens nodes, names nobody else uses.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import {
  MAIN_DEVICE,
  type SessionRecord,
  userTopic,
} from "../../src/broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  UserStore,
} from "../../src/broker/ports.ts";

export interface ClusterNode {
  readonly cluster: Cluster;
  /** Grows with what its listener is told. */
  readonly events: readonly ClusterEvent[];
  /** The store of its cluster. */
  readonly store: Pick<UserStore, "putDevice">;
}

export interface ClusterDriver {
  readonly name: string;
  /**
   * A started node of one and the same cluster. Closes itself with the test. A driver of one node gives the same one each time.
   */
  open(t: Test): Promise<ClusterNode>;
}

export type Kind = Partial<Pick<SessionRecord, "flag" | "level" | "deviceId">>;

/** A session of `uid` on the cluster's node: a main app device without a name, unless told otherwise. */
export function sessionOf(
  cluster: Pick<Cluster, "nodeId">,
  uid: string,
  kind: Kind = {},
): SessionRecord {
  return {
    sessionId: randomUUID(),
    nodeId: cluster.nodeId,
    uid,
    flag: 0,
    level: MAIN_DEVICE,
    deviceId: "",
    tokenTag: "",
    ...kind,
  };
}

export const freshUid = (): string => `u-${randomUUID()}`;

/** Which sessions of the user the node was told to end while `step` ran, and why. The node listens to the user from then on. */
export async function endedWhile(
  { cluster, events }: Omit<ClusterNode, "store">,
  uid: string,
  step: () => Promise<unknown>,
): Promise<readonly (readonly [sessionId: string, reason: CloseReason])[]> {
  await cluster.listen(userTopic(uid));
  const from = events.length;
  await step();
  await cluster.barrier();
  return events
    .slice(from)
    .flatMap((one) =>
      one.kind === "end_session" && one.uid === uid
        ? [[one.sessionId, one.reason] as const]
        : [],
    );
}

/** Registers a login and gives the ids of the sessions that it ended. */
export async function endedFor(
  node: Omit<ClusterNode, "store">,
  session: SessionRecord,
): Promise<readonly string[]> {
  const ended = await endedWhile(node, session.uid, async () => {
    const { kind } = await node.cluster.register(session);
    if (kind !== "entered") throw new Error(kind);
  });
  return ended.map(([sessionId]) => sessionId);
}
