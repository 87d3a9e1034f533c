// The embedded driver against the Store contract: as it runs by default.

import t from "tap";
import { storeContract } from "../../contract/store.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(t, embeddedDriver("embedded"));
