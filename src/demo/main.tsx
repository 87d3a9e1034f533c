// The page of the demo.

import { render } from "preact";

const { clientUrl = "", refusedOrigin = "" } = document.body.dataset;

function Demo() {
  return (
    <main>
      <h1 class="brand">Jindou demo</h1>
      <p>
        Clients connect to {clientUrl} {refusedOrigin}
      </p>
    </main>
  );
}

render(<Demo />, document.body);
