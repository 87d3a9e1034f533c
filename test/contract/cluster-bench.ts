// What the Cluster contract's suites work with: a driver that opens nodes, names nobody else uses.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import { MAIN_DEVICE, type SessionRecord } from "../../src/broker/model.ts";
import type { Cluster, ClusterEvent } from "../../src/broker/ports.ts";

export interface ClusterDriver {
  readonly name: string;
  /**
   * A started node of one and the same cluster; `events` grows with what its listener was told. Closes itself with the test.
   * A driver of one node gives the same one each time.
   */
  open(t: Test): Promise<{
    readonly cluster: Cluster;
    readonly events: readonly ClusterEvent[];
  }>;
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

/** Registers a login and gives the sessions that it ended. */
export async function endedFor(
  cluster: Pick<Cluster, "register">,
  session: SessionRecord,
): Promise<readonly SessionRecord[]> {
  const placed = await cluster.register(session);
  if (placed.kind === "refused") throw new Error(placed.reason);
  return placed.ended.map(({ session }) => session);
}
