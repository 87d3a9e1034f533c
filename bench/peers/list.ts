// The peers of the overview except Jindou, in the order of its tables. The baseline comes first.
// `overview.ts` inserts Jindou after it.

import { centrifugo } from "./centrifugo.ts";
import { mosquitto } from "./mosquitto.ts";
import { nats } from "./nats.ts";
import type { Peer } from "./peer.ts";
import { raw } from "./raw.ts";
import { socketIo } from "./socket-io.ts";
import { ws } from "./ws.ts";
import { wukongim } from "./wukongim.ts";

export const PEERS: readonly Peer[] = [raw, ws, socketIo, centrifugo, nats, mosquitto, wukongim];
