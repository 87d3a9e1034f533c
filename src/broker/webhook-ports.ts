// Webhook endpoints: their settings, the control plane's operations, and the store's port. The
// store does not interpret the texts that it keeps for an endpoint.

import type { Lease } from "./lease-ports.ts";

export const WEBHOOK_FORMATS = ["standard", "wukongim", "cloudevents"] as const;
export type WebhookFormat = (typeof WEBHOOK_FORMATS)[number];

export const WEBHOOK_ORDERS = ["channel", "none"] as const;

const DAY_S = 86_400;

/** Limits on an endpoint's settings, in the configuration and in calls. */
export const WEBHOOK_LIMITS = {
  maxUrlLength: 2048,
  maxTypes: 32,
  maxTypeLength: 64,
  maxPrefixLength: 128,
  maxBatch: 1000,
  maxBatchWaitMs: 60_000,
  minAgeS: 60,
  maxAgeS: 30 * DAY_S,
} as const;

/** Defaults of an endpoint's settings. */
export const WEBHOOK_DEFAULTS = {
  batch: { max: 100, waitMs: 200 },
  order: "channel",
  maxAgeS: 3 * DAY_S,
} as const;

/**
 * Selects the channels whose events an endpoint gets. Events without a channel are not affected.
 */
export interface ChannelFilter {
  readonly type?: number | undefined;
  readonly prefix?: string | undefined;
}

/** Settings that an endpoint's owner chooses. */
export interface WebhookSettings {
  readonly url: string;
  /** Names of event types, as in `EventFilter`. */
  readonly types: readonly string[];
  readonly channels: ChannelFilter;
  readonly format: WebhookFormat;
  /**
   * Maximum number of events in a request, and the maximum time for which the first event of a
   * request waits for further events.
   */
  readonly batch: { readonly max: number; readonly waitMs: number };
  readonly order: (typeof WEBHOOK_ORDERS)[number];
  readonly enabled: boolean;
  /**
   * Time after which the broker gives up on a request that is not accepted, and disables the
   * endpoint.
   */
  readonly maxAgeS: number;
}

/**
 * Settings in a call. An absent setting gets its default when an endpoint is created, and keeps its
 * value when an endpoint is changed.
 */
export type WebhookChanges = {
  readonly [Name in Exclude<keyof WebhookSettings, "batch">]?: WebhookSettings[Name] | undefined;
} & {
  readonly batch?:
    | { readonly max?: number | undefined; readonly waitMs?: number | undefined }
    | undefined;
};

/** An endpoint as the control plane shows it. */
export interface WebhookView extends WebhookSettings {
  readonly id: string;
  /** True if the settings come from the configuration file. */
  readonly isFixed: boolean;
  /** Reason why the endpoint was disabled. "" if it is enabled or was disabled by its owner. */
  readonly disabledReason: string;
  readonly createdAtMs: number;
  readonly replays: number;
}

/** Reason why an operation on an endpoint was refused. */
export interface WebhookRefusal {
  readonly refusal:
    | "webhook_not_found"
    | "webhook_failure_not_found"
    | "webhook_fixed"
    | "webhook_limit"
    | "url_refused"
    | "events_off"
    | "bad_cursor"
    | "overloaded";
  /** `undefined` if the refusal's default message applies. */
  readonly message?: string;
}

export type OrRefusal<Result> = Promise<Result | WebhookRefusal>;

/** Outcome of one request to an endpoint. */
export interface WebhookAttempt {
  readonly timeMs: number;
  readonly webhookId: string;
  readonly attempt: number;
  readonly events: number;
  readonly isReplay: boolean;
  /** HTTP status of the reply, or 0 if there was no complete reply. */
  readonly status: number;
  readonly durationMs: number;
  readonly error: string;
  /** First KiB of the reply's body if the status was not 2xx, otherwise "". */
  readonly reply: string;
  readonly nodeId: string;
}

/**
 * A parked event: the receiver did not accept it, and the broker no longer retries it
 * automatically.
 */
export interface WebhookFailure {
  readonly event: { readonly id: string; readonly type: string; readonly timestamp: string };
  readonly parkedMs: number;
  readonly attempts: number;
  readonly status: number;
  readonly error: string;
  readonly reply: string;
}

export interface ReplayRange {
  /** A cursor of the feed, a time (RFC 3339 or Unix milliseconds), `now` or `oldest`. */
  readonly after: string;
  /** Has the same form as `after`. `undefined` means `now`. */
  readonly before: string | undefined;
  readonly types: readonly string[];
}

/** Control-plane operations on webhook endpoints. */
export interface Webhooks {
  list(): Promise<readonly WebhookView[]>;
  create(
    settings: WebhookChanges & Pick<WebhookSettings, "url">,
  ): OrRefusal<{ readonly id: string; readonly secret: string }>;
  update(id: string, changes: WebhookChanges): OrRefusal<WebhookView>;
  remove(id: string): OrRefusal<"done">;
  /** Sends a `ping` immediately. */
  test(id: string): OrRefusal<WebhookAttempt>;
  /** Delivers a range of the feed again while live delivery continues. */
  replay(id: string, range: ReplayRange): OrRefusal<{ readonly id: string }>;
  /** Adds a secret. Requests are also signed with the earlier secrets until the overlap ends. */
  addSecret(id: string, overlapS: number): OrRefusal<{ readonly secret: string }>;
  attempts(id: string, limit: number): OrRefusal<readonly WebhookAttempt[]>;
  failures(id: string): OrRefusal<readonly WebhookFailure[]>;
  /**
   * Sends a parked event immediately. If the receiver accepts the event, it is no longer parked.
   */
  retry(id: string, eventId: string): OrRefusal<WebhookAttempt>;
}

/** An endpoint's settings as text, and their version. */
export interface StoredWebhook {
  readonly id: string;
  /** Increases with each change to the settings. */
  readonly version: number;
  readonly settings: string;
}

/** An endpoint, with the token of its lease. */
export interface WebhookLease {
  readonly webhookId: string;
  readonly token: number;
}

/** Returns the name of the lease under which a node delivers the events of an endpoint. */
export function webhookLeaseName(webhookId: string): string {
  return `webhook:${webhookId}`;
}

/** New values of an endpoint's texts, by name. `undefined` removes the text. */
export type TextChanges = ReadonlyMap<string, string | undefined>;

export type WebhookTextKind = "state" | "parked";

export interface WebhookStore {
  /** Returns the stored endpoints, ordered by id. */
  webhooks(): Promise<readonly StoredWebhook[]>;
  /**
   * Atomically stores the settings if the stored version is `expected`. For a new endpoint,
   * `expected` is 0. The new version is `expected + 1`. Returns `changed` if the stored version is
   * not `expected`, and `full` if there are already `max` endpoints. If `freesSpace` is true, the
   * change is accepted even on a full disk, because the new settings allow events to be removed.
   */
  putWebhook(
    id: string,
    settings: string,
    expected: number,
    max: number,
    freesSpace?: boolean,
  ): Promise<"done" | "changed" | "full">;
  /**
   * Atomically removes an endpoint with its lease and all its texts. Returns false if the endpoint
   * is unknown.
   */
  removeWebhook(id: string): Promise<boolean>;
  /**
   * Acquires or renews the leases of endpoints for `ttlMs` in one step. Returns the leases in the
   * order of `ids`. A lease is `undefined` if another owner holds it (see `LeaseStore`) or if the
   * endpoint was removed.
   */
  acquireWebhookLeases(
    ids: readonly string[],
    owner: string,
    ttlMs: number,
  ): Promise<readonly (Lease | undefined)[]>;
  webhookTexts(id: string, kind: WebhookTextKind): Promise<ReadonlyMap<string, string>>;
  /**
   * Atomically changes texts. Returns false and changes nothing if the endpoint was removed, or if
   * another owner has acquired the lease. If `target` is not a lease, checks only whether the
   * endpoint was removed, and changes only texts that are already stored.
   */
  saveWebhookTexts(
    target: WebhookLease | { readonly webhookId: string },
    changes: Readonly<Partial<Record<WebhookTextKind, TextChanges>>>,
  ): Promise<boolean>;
  /**
   * Stores attempts and keeps the newest `keep` attempts of the endpoint. Has no effect if the
   * endpoint was removed. A restart may lose the attempts.
   */
  addWebhookAttempts(id: string, attempts: readonly string[], keep: number): Promise<void>;
  /** Returns the newest attempts, newest first. */
  webhookAttempts(id: string, limit: number): Promise<readonly string[]>;
}
