// An endpoint's stored record, with its settings and secrets. Keeps no state.

import { createHash } from "node:crypto";
import type { EventPosition } from "../broker/event-ports.ts";
import type { StoredWebhook, WebhookSettings, WebhookView } from "../broker/webhook-ports.ts";

/** An endpoint's secret: `whsec_` followed by Base64. */
interface Secret {
  readonly text: string;
  /** Time in Unix milliseconds after which the secret is no longer used. Absent means no limit. */
  readonly untilMs?: number;
}

/** A second delivery of a range of the feed, in addition to the live delivery. */
export interface Replay {
  readonly id: string;
  /** Start of the range: the position in each partition after which events are delivered. */
  readonly after: readonly EventPosition[];
  /** End of the range: the last position in each partition. */
  readonly before: readonly EventPosition[];
  /** Types to deliver again. An empty list means the endpoint's types. */
  readonly types: readonly string[];
}

interface EndpointRecord {
  /** Absent for a fixed endpoint, whose settings are in the configuration file. */
  readonly settings?: WebhookSettings;
  readonly secrets: readonly Secret[];
  /**
   * Position in each partition at the time the endpoint was created. Later events are delivered.
   */
  readonly from: readonly EventPosition[];
  readonly createdAtMs: number;
  /** Time at which a node last recorded that its configuration has this fixed endpoint. */
  readonly seenAtMs?: number;
  /**
   * Hash of the URL and the secrets of a fixed endpoint. Used to detect a change in the
   * configuration.
   */
  readonly targetHash?: string;
  /**
   * Time at which the endpoint was last enabled or got a different URL or secret. Failures
   * before this time are ignored.
   */
  readonly enabledAtMs: number;
  /** Reason why a node has disabled the endpoint. Absent if no node has disabled it. */
  readonly disabledReason?: string;
  readonly replays: readonly Replay[];
}

export interface Endpoint extends EndpointRecord {
  readonly id: string;
  readonly version: number;
  readonly settings: WebhookSettings;
  readonly isFixed: boolean;
}

/** An endpoint from the configuration file. */
export interface FixedEndpoint {
  readonly id: string;
  readonly settings: WebhookSettings;
  readonly secrets: readonly Secret[];
}

/**
 * Returns the endpoint of a stored record, or `undefined` if it is a fixed endpoint that this
 * node's configuration does not contain.
 */
export function endpointOf(
  { id, version, settings: text }: StoredWebhook,
  fixed: FixedEndpoint | undefined,
): Endpoint | undefined {
  const record = recordOf(text);
  const settings = fixed?.settings ?? record.settings;
  if (settings === undefined) return undefined;
  const secrets = fixed?.secrets ?? record.secrets;
  return { ...record, id, version, settings, secrets, isFixed: fixed !== undefined };
}

/** Returns a hash of a fixed endpoint's URL and secrets. */
export function targetHashOf({ settings, secrets }: FixedEndpoint): string {
  const texts = [settings.url, ...secrets.map(({ text }) => text)];
  return createHash("sha256").update(texts.join("\n")).digest("base64url");
}

/** Returns true if the endpoint is, or was, defined in a node's configuration. */
export function isFixedRecord({ settings: text }: StoredWebhook): boolean {
  return recordOf(text).settings === undefined;
}

/** Returns the last recorded time at which a node had the fixed endpoint in its configuration. */
export function seenAtMsOf({ settings: text }: StoredWebhook): number {
  const { seenAtMs, createdAtMs } = recordOf(text);
  return seenAtMs ?? createdAtMs;
}

function recordOf(text: string): EndpointRecord {
  return JSON.parse(text); // as written by `textOf`
}

export function textOf({ id: _, version: __, isFixed, settings, ...record }: Endpoint): string {
  return JSON.stringify(isFixed ? { ...record, secrets: [] } : { ...record, settings });
}

/** Returns true if events are delivered to the endpoint. */
export function isActive({ settings, disabledReason }: Endpoint): boolean {
  return settings.enabled && disabledReason === undefined;
}

export function viewOf(endpoint: Endpoint): WebhookView {
  const { id, settings, isFixed, disabledReason = "", createdAtMs, replays } = endpoint;
  return {
    ...settings,
    ...{ id, isFixed, disabledReason, createdAtMs },
    enabled: isActive(endpoint),
    replays: replays.length,
  };
}
