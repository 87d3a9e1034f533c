// Compares the timings on which all nodes of a cluster must agree. While the timings differ, every
// node uses the largest value of each timing. Differences in other settings are only reported.
// State: the timings in use.

export interface Timings {
  readonly "cluster.deadAfterMs": number;
  readonly "redis.timeoutMs": number;
  readonly "store.dedupeWindowS": number;
}

/** Settings that should be equal on all nodes, by configuration key. */
export type SharedSettings = Readonly<Record<string, unknown>>;

interface AgreementPorts {
  readonly timings: Timings;
  readonly settings: SharedSettings;
  readonly acceptsNewTimings: boolean;
  /**
   * Called when the timings in use have changed. `areEqual` is false while the timings of nodes
   * differ.
   */
  readonly onChange?: (timings: Timings, areEqual: boolean) => void;
  readonly onDifferences?: (differences: readonly Difference[]) => void;
}

interface Difference {
  readonly key: string;
  readonly here: unknown;
  readonly there: unknown;
  readonly node: string;
}

const KEYS = ["cluster.deadAfterMs", "redis.timeoutMs", "store.dedupeWindowS"] as const;

export class Agreement {
  readonly #ports: AgreementPorts;
  #timings: Timings;

  constructor(ports: AgreementPorts) {
    this.#ports = ports;
    this.#timings = ports.timings;
  }

  get timings(): Timings {
    return this.#timings;
  }

  get own(): Timings {
    return this.#ports.timings;
  }

  get settings(): SharedSettings {
    return this.#ports.settings;
  }

  get acceptsNewTimings(): boolean {
    return this.#ports.acceptsNewTimings;
  }

  update(others: readonly Timings[]): void {
    const all = [this.own, ...others];
    const larger = Object.fromEntries(
      KEYS.map((key) => [key, Math.max(...all.map((timings) => timings[key]))]),
    ) as unknown as Timings;
    const isSame = KEYS.every((key) => larger[key] === this.#timings[key]);
    this.#timings = larger;
    const areEqual = all.every((timings) => KEYS.every((key) => timings[key] === larger[key]));
    if (!isSame) this.#ports.onChange?.(larger, areEqual);
  }

  refusal(node: string, timings: Timings): Error | undefined {
    const key = KEYS.find((name) => timings[name] !== this.own[name]);
    if (key === undefined) return undefined;
    const there = timings[key];
    return new Error(
      `${key} is ${this.own[key]} here and ${there} on the live node ${JSON.stringify(node)}, but must be equal on all nodes. Set it to ${there}, or change it node by node with cluster.acceptNewTimings (JINDOU_CLUSTER_ACCEPT_NEW_TIMINGS) set to true`,
    );
  }

  compare(others: ReadonlyMap<string, SharedSettings>): void {
    const differences: Difference[] = [];
    // A node that runs a different version may lack a setting.
    for (const [node, settings] of others)
      for (const [key, here] of Object.entries(this.settings))
        if (key in settings && JSON.stringify(settings[key]) !== JSON.stringify(here))
          differences.push({ key, here, there: settings[key], node });
    if (differences.length > 0) this.#ports.onDifferences?.(differences);
  }
}
