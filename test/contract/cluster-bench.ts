// What the Cluster contract's suites work with: a driver that opens nodes, names nobody else uses.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
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

export const freshUid = (): string => `u-${randomUUID()}`;
