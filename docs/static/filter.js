// Adds a search field above each table in an element of class "filtered". Rows without the words in it are hidden.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".filtered")) {
    const field = document.createElement("input");
    field.type = "search";
    field.className = "filter";
    field.placeholder = "Only rows with these words";
    field.setAttribute("aria-label", field.placeholder);
    const rows = [...box.querySelectorAll("tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
    });
    box.prepend(field);
  }
});
