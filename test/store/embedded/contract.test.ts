// The embedded driver against the Store contract: as it runs by default.

import { storeContract } from "../../contract/store.ts";
import { t } from "../../support/suite.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(t, embeddedDriver("embedded"));
