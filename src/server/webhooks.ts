// Creates the webhooks of a node from its configuration. Keeps no state.

import { typesError } from "../broker/events.ts";
import { createWukongimFormat } from "../compat/wukongim/webhook-format.ts";
import type { Config } from "../config/schema.ts";
import { roomLogger } from "../observe/logger.ts";
import { LOOPBACK_NETWORKS, resolveHost } from "../webhooks/addresses.ts";
import type { FixedEndpoint } from "../webhooks/endpoint.ts";
import { type Format, standardFormat } from "../webhooks/formats.ts";
import { createWebhooks, type WebhookService } from "../webhooks/webhooks.ts";
import { requiresCredential } from "./credentials.ts";
import { errorLog, type Node } from "./node.ts";
import { StartError } from "./start-error.ts";

export function createNodeWebhooks(node: Node): WebhookService {
  const { config, store, cluster, metrics, version } = node;
  const { families } = metrics;
  const { clock } = node.drivers;
  const log = roomLogger(node.logger, "webhooks");
  const { max, timeoutMs, allowNetworks, endpoints } = config.webhooks;
  const wukongim = createWukongimFormat(config.webhooks.compressUidsAbove);
  const isOpen = !requiresCredential(config);
  return createWebhooks({
    feed: node.events,
    ...{ store, clock, max, timeoutMs, version },

    nodeId: cluster.nodeId,
    fixed: endpoints.map((endpoint) => fixedEndpoint(endpoint, wukongim)),
    allowNetworks: isOpen ? [...allowNetworks, ...LOOPBACK_NETWORKS] : allowNetworks,
    resolve: resolveHost,
    formats: { wukongim },
    metrics: {
      attempted(id, outcome, ms, events) {
        families.webhookAttempts.of(id, outcome).add();
        families.webhookDuration.of().observe(ms / 1000);
        if (outcome === "2xx") families.webhookEvents.of(id).add(events);
      },
      watch(id, { oldestMs, lag, parked }) {
        const ageS = () => Math.max(0, clock() - (oldestMs() ?? Infinity)) / 1000;
        families.webhookOldest.of(id).from(ageS);
        families.webhookLag.of(id).from(lag);
        families.webhookParked.of(id).from(parked);
      },
    },
    onError: errorLog(node, "webhooks"),
    onChanged: () => node.demand.refresh(),
    onLost(webhook, events) {
      families.webhookLost.of(webhook).add(events);
      log.error({ webhook, events }, "Events left the feed before a webhook received them");
    },
    onDisabled(webhook, reason) {
      families.webhookDisabled.of(webhook).add();
      log.error(
        { webhook, reason },
        "A webhook was disabled. Fix its receiver, then set enabled to 1 with PATCH to resume deliveries",
      );
    },
  });
}

function fixedEndpoint(
  options: Config["webhooks"]["endpoints"][number],
  wukongim: Format,
): FixedEndpoint {
  const { id, url, format, order, maxAgeS, secret, previousSecret } = options;
  const formatTypes = (format === "wukongim" ? wukongim : standardFormat).types;
  const { channelType: type, channelPrefix: prefix } = options;
  const error = typesError(options.types);
  if (error !== undefined)
    throw new StartError(`The webhook ${id} in webhooks.endpoints cannot be used: ${error}`);
  return {
    id,
    settings: {
      ...{ url, format, order, maxAgeS, enabled: true },
      types: options.types.length === 0 ? formatTypes : options.types,
      channels: { ...(type > 0 && { type }), ...(prefix !== "" && { prefix }) },
      batch: { max: options.batchMax, waitMs: options.batchWaitMs },
    },
    secrets: [secret, previousSecret].filter((text) => text !== "").map((text) => ({ text })),
  };
}
